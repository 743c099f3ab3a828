"""The benchmarks as commands, at the smallest scale; the figures themselves are not checked."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ppga

from benchmarks.commands import BENCHMARKS, parse
from helpers.commands import Done, benchmark

SMALL = ("--task", "hopper", "--preset", "smoke", "--rounds", "1")


def results_of(done: Done, folder: Path) -> dict[str, dict[str, Any]]:
    """Results in out.json, by name."""
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "out.json").read_text())["results"]
    return {result["name"]: result for result in results}


def test_results_are_written_as_json(tmp_path: Path) -> None:
    size = ("--environments", "4", "--steps", "2", "--rounds", "1")
    done = benchmark("physics", "--task", "hopper", *size, "--json", "out.json", folder=tmp_path)
    results = results_of(done, tmp_path)
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["machine"]["versions"]["ppga"] == ppga.__version__
    for result in results.values():
        assert set(result) == {"name", "value", "unit", "ratio", "against", "interval"}
        assert result["value"] > 0
        assert result["unit"] == "steps/s"
    bare, physics = results["mujoco.batch/hopper"], results["physics/hopper"]
    assert physics["against"] == "mujoco.batch"
    assert physics["ratio"] == pytest.approx(physics["value"] / bare["value"])
    assert "mjx/hopper" not in results, "other simulators only with --compare"


def test_learning_is_compared_with_its_limits(tmp_path: Path) -> None:
    results = results_of(
        benchmark("vppo", *SMALL, "--steps", "4", "--json", "out.json", folder=tmp_path), tmp_path
    )
    physics, update = (results[f"{name}/hopper"]["value"] for name in ("mujoco.batch", "update"))
    vppo = results["vppo/hopper"]
    assert vppo["ratio"] == pytest.approx(vppo["value"] * (1 / physics + 1 / update))
    assert results["evaluation/hopper"]["ratio"] > 0


def test_phases_add_up_to_less_than_an_iteration(tmp_path: Path) -> None:
    results = results_of(benchmark("iteration", *SMALL, "--json", "out.json", folder=tmp_path), tmp_path)
    assert 0 < results["overhead/hopper"]["value"] < 1
    phases = [results[f"{phase}/hopper"]["value"] for phase in ("jacobian", "evaluate", "walk")]
    assert min(phases) > 0
    assert sum(phases) <= results["iteration/hopper"]["value"]


def test_clicks_and_frames_of_the_viewer(tmp_path: Path) -> None:
    pytest.importorskip("viser")
    words = ("--task", "hopper", "--rounds", "2", "--json", "out.json")
    results = results_of(benchmark("view", *words, folder=tmp_path), tmp_path)
    click, slowest, draw = (results[f"{name}/hopper"] for name in ("click", "slowest click", "draw"))
    assert 0 < click["value"] <= slowest["value"]
    steps = re.fullmatch(r"s \((\d+) steps or more\)", click["unit"])
    assert steps
    assert 1 <= int(steps[1]) <= 1000
    assert draw["ratio"] == pytest.approx(draw["value"] * 40)


def test_memory_is_that_of_full_archives(tmp_path: Path) -> None:
    words = ("--task", "hopper", "--preset", "smoke", "--shape", "7", "--json", "out.json")
    done = benchmark("memory", *words, folder=tmp_path)
    elites = results_of(done, tmp_path)["elites/hopper"]
    assert (elites["value"], elites["unit"]) == (7.0, "of 7 cells")
    assert "of 7 cells" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fysics",), "unknown benchmark 'fysics'. Did you mean 'physics'?"),
        (("physics", "--task", "humanoyd"), "Did you mean 'humanoid'?"),
        (("physics", "--rounds", "0"), "--rounds must be an integer of at least 1, got 0"),
        (("physics", "--json", "nowhere/x.json"), "cannot write to nowhere/x.json: No such file"),
        (("physics", "--json", "."), "cannot write to .: Is a directory"),
        (("physics", "--threads", "0"), "threads must be an integer of at least 1, got 0"),
        (("physics", "--rouns", "3"), "--rounds"),
        (("vppo", "--task", "hopper", "--environments", "7"), "--ppo.environments 6 or 8 can"),
        (("iteration", "--task", "hopper", "--preset", "desktop"), "unknown preset 'desktop'"),
        (("race", "--minutes", "0"), "--minutes must be positive, got 0.0"),
        (("race", "--loops", "qdax dcrl"), "Did you mean 'qdax dcrl-me'?"),
        (("race", "--seeds", "0"), "--seeds must be an integer of at least 1, got 0"),
        (("race", "--episodes", "1"), "--episodes must be an integer of at least 2, got 1"),
        (("race", "--parallel", "9999"), "--parallel 9999 needs as many cores, one for each loop;"),
        (("race", "--task", "all", "--output", "x"), "--output is the folder of one task"),
        (("all", "--task", "hoper"), "Did you mean 'hopper'?"),
        ((), "Expected one of {all, start, physics"),
    ],
)
def test_wrong_input_is_rejected_with_one_message(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = benchmark(*words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_options_belong_to_their_benchmarks() -> None:
    with pytest.raises(SystemExit) as end:
        parse(["view", "--minutes", "1"])
    assert end.value.code == 2


def test_help_and_wrong_names_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from benchmarks.__main__ import main\n"
        "for words, expected in ((['--help'], 0), (['physics', '--help'], 0), (['fysics'], 2)):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert (end.code or 0) == expected, words\n"
        "    heavy = {'jax', 'mujoco', 'matplotlib', 'gymnasium', 'numpy', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    for name in BENCHMARKS:
        assert name in done.stdout
