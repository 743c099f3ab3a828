"""The command line as a user calls it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ppga
from ppga import demo
from ppga.algorithms import ALGORITHMS
from ppga.cli import main
from ppga.study import VARIANTS

from conftest import command


def test_tasks_are_listed_with_their_sizes() -> None:
    result = command("tasks")
    assert result.returncode == 0
    row = next(line for line in result.stdout.splitlines() if "humanoid-full" in line)
    assert row.split()[:4] == ["humanoid-full", "270", "17", "10x10"]


def test_algorithms_are_listed_with_their_references() -> None:
    shown = " ".join(command("algorithms").stdout.split())
    for name in (*ALGORITHMS, *VARIANTS):
        assert name in shown
    assert shown.count("ICLR 2024") >= 6, "PPGA, its ablations of the algorithm and of its design"


@pytest.mark.parametrize("size", ["smoke", pytest.param("laptop", marks=pytest.mark.long)])
def test_demo_trains_and_shows_gaits(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended after one iteration by its budget, it has everything to show but walking."""
    monkeypatch.setattr(demo, "preset", lambda _, task: ppga.preset(size, task))
    result = command("demo", "--task", "hopper", "--minutes", "0.01", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    for words in ("the best: reward", "little foot", "cells", "QD-score", "ppga train --resume"):
        assert words in result.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "heatmap.png").exists()
    assert len(ppga.load_archive(folder)) > 0


def test_bench_writes_the_shared_form(tmp_path: Path) -> None:
    size = ("--environments", "4", "--steps", "2", "--rounds", "1")
    result = command("bench", "physics", "--task", "hopper", *size, "--json", "out.json", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["machine"]["versions"]["ppga"] == ppga.__version__
    results = {entry["name"]: entry for entry in content["results"]}
    for entry in results.values():
        assert set(entry) == {"name", "value", "unit", "ratio", "against"}
        assert entry["value"] > 0
        assert entry["unit"] == "steps/s"
    bare, ours = results["mujoco.batch/hopper"], results["physics/hopper"]
    assert ours["against"] == "mujoco.batch"
    assert ours["ratio"] == pytest.approx(ours["value"] / bare["value"])
    assert "mjx/hopper" not in results, "others only where they are asked for"


def test_bench_measures_learning_beside_its_limits(tmp_path: Path) -> None:
    size = ("--task", "hopper", "--preset", "smoke", "--rounds", "1", "--json", "out.json")
    result = command("bench", "vppo", *size, "--steps", "4", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    results = {entry["name"]: entry for entry in json.loads((tmp_path / "out.json").read_text())["results"]}
    physics, update = (results[f"{name}/hopper"]["value"] for name in ("mujoco.batch", "update"))
    vppo = results["vppo/hopper"]
    assert vppo["ratio"] == pytest.approx(vppo["value"] * (1 / physics + 1 / update))
    assert results["evaluation/hopper"]["ratio"] > 0
    result = command("bench", "iteration", *size, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    results = {entry["name"]: entry for entry in json.loads((tmp_path / "out.json").read_text())["results"]}
    assert 0 < results["overhead/hopper"]["value"] < 1
    parts = [results[f"{phase}/hopper"]["value"] for phase in ("jacobian", "judge", "walk")]
    assert sum(parts) <= results["iteration/hopper"]["value"]


def test_bench_measures_clicks_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("viser")
    words = ("--task", "hopper", "--rounds", "2", "--json", "out.json")
    result = command("bench", "view", *words, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    results = {entry["name"]: entry for entry in json.loads((tmp_path / "out.json").read_text())["results"]}
    click, slowest, draw = (results[f"{name}/hopper"] for name in ("click", "slowest click", "draw"))
    assert 0 < click["value"] <= slowest["value"]
    steps = re.fullmatch(r"s \((\d+) steps or more\)", click["unit"])
    assert steps
    assert 1 <= int(steps[1]) <= 1000
    assert draw["ratio"] == pytest.approx(draw["value"] * 40)


def test_doctor_tells_what_is_there_and_that_the_engines_agree() -> None:
    result = command("doctor", "--task", "hopper", "--environments", "12", "--threads", "1")
    assert result.returncode == 0, result.stderr
    for words in ("identical", "agree", "cpu:0", "1 threads", "jax", "mjx: installed"):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "physics", "--task", "humanoyd"], "Did you mean 'humanoid'?"),
        (["bench", "fysics"], "Did you mean 'physics'?"),
        (["bench", "physics", "--rounds", "0"], "--rounds must be a whole number of at least 1, got 0"),
        (["bench", "physics", "--json", "nowhere/x.json"], "cannot write to nowhere/x.json: No such file"),
        (["bench", "physics", "--json", "."], "cannot write to .: Is a directory"),
        (["bench", "physics", "--threads", "0"], "threads must be a whole number of at least 1, got 0"),
        (["demo", "--seed", "-1"], "seed must lie in [0, 2^32), got -1"),
        (["demo", "--minutes", "-1"], "the budget of minutes must be positive, got -1.0"),
        (["demo", "--minutes", "many"], "many"),
        (["demo", "--task", "hoper"], "Did you mean 'hopper'?"),
        (["train"], "which task?"),
        (["train", "halfcheeta"], "Did you mean 'halfcheetah'?"),
        (["train", "hopper", "--preset", "desktop"], "unknown preset 'desktop'"),
        (["train", "hopper", "--minutes", "0"], "the budget of minutes must be positive"),
        (["train", "hopper", "--ppo.environments", "7"], "try 6 or 8"),
        (["train", "hopper", "--ppo.enviroments", "8"], "--ppo.enviroments"),
        (["train", "hopper", "--archive.alpha", "1.5"], "alpha must lie in [0, 1]"),
        (["train", "hopper", "--algorithm", "pgga"], "Did you mean 'ppga'?"),
        (["train", "hopper", "--init-from", "nowhere"], "nowhere: looked for"),
        (["train", "--resume", "nowhere"], "nowhere is not a run's folder"),
        (["train", "hopper", "--physics", "mjx"], "--physics"),
        (["bench", "vppo", "--task", "hopper", "--environments", "7"], "try 6 or 8"),
        (["doctor", "--task", "cheetah"], "Did you mean 'halfcheetah'?"),
        (["doctor", "--threads", "0"], "threads must be a whole number of at least 1, got 0"),
        (["taskz"], "taskz"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has imported everything already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ppga", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    output = capsys.readouterr()
    assert words in output.err + output.out
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_device_that_is_not_there() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    command = [sys.executable, "-c", "from ppga.cli import main; main()", "tasks"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert "ppga: JAX finds no device (JAX_PLATFORMS='cuda')" in result.stderr
    assert "Traceback" not in result.stderr


def test_answers_at_once_import_nothing_heavy() -> None:
    """Help, the version, and what is seen to be wrong before anything runs."""
    code = (
        "import sys, ppga\n"
        "from ppga.cli import main\n"
        "for words, wanted in (\n"
        "    (['--help'], 0), (['--version'], 0), (['taskz'], 2), (['evaluate', '--help'], 0),\n"
        "    (['bench', 'fysics'], 2), (['evaluate', 'run', '--episodes', '0'], 2),\n"
        "):\n"
        "    sys.argv, code = ['ppga', *words], 0\n"
        "    try: main()\n"
        "    except SystemExit as end: code = end.code or 0\n"
        "    assert code == wanted, (words, code)\n"
        "    heavy = {'jax', 'mujoco', 'matplotlib', 'gymnasium', 'numpy', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout
    assert f"ppga {ppga.__version__}\n" in result.stdout


def test_a_run_is_resumed_with_its_own_settings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def here(*arguments: str) -> tuple[int, str]:
        """Exit code and output of a command in this process."""
        monkeypatch.setattr(sys, "argv", ["ppga", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        output = capsys.readouterr()
        return code, output.out + output.err

    code, output = here("train", "sphere", "--iterations", "2", "--output", "run", "--search.branches", "4")
    assert code == 0
    assert "QD-score" in output
    for arguments, words in (
        (["--search.branches", "8"], "search.branches (was 4, now 8)"),
        (["hopper"], "is a run of sphere, not of hopper"),
        (["--output", "elsewhere"], "leave --output out"),
        (["--preset", "smoke"], "leave --preset out"),
    ):
        code, output = here("train", "--resume", "run", *arguments)
        assert code == 2
        assert words in output
    told = (tmp_path / "run" / "config.json").read_text()
    code, output = here("train", "--resume", "run", "--iterations", "9", "--dry-run")
    assert code == 0
    assert "memory" in output
    assert (tmp_path / "run" / "config.json").read_text() == told
    code, output = here("train", "--resume", "run")
    assert code == 0
    assert "nothing to do" in output
    code, output = here("train", "--resume", "run", "--iterations", "3")
    assert code == 0
    assert "resuming after iteration 2" in output
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3]


def test_a_dry_run_tells_what_it_would_take_and_writes_nothing(tmp_path: Path) -> None:
    result = command("train", "halfcheetah", "--preset", "paper", "--dry-run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    for words in ("search.branches", "300", "memory, archives full", "an iteration takes about", "days"):
        assert words in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_word_that_looks_like_a_task_does_not_choose_the_preset(tmp_path: Path) -> None:
    result = command("train", "--output", "ant", "hopper", "--preset", "smoke", "--dry-run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ppga on hopper" in result.stdout
    row = next(line for line in result.stdout.splitlines() if "archive.threshold_min" in line)
    assert row.split()[-1] == "0.0", "hopper's, not ant's"


def test_help_of_train_is_grouped_and_knows_the_preset() -> None:
    result = command("train", "walker2d", "--preset", "paper", "--help")
    assert result.returncode == 0
    for words in ("Example:", "ppo options", "archive options", "--search.branches", "(default: 300)"):
        assert words in result.stdout
