"""Benchmarks beside other libraries, at the smallest scale; what they measure is not looked at."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ppga.bench.everything import parts
from ppga.bench.harness import Result
from ppga.bench.loops import LOOPS, OURS, THEIRS
from ppga.bench.race import Course, course, figures, table
from ppga.bench.start import BARE, PYTHON, process, waited, waits
from ppga.cli.measuring import BENCHMARKS
from ppga.errors import InputError
from ppga.tasks import TASKS, find

from conftest import command


@pytest.mark.parametrize("loop", ["map-elites", *THEIRS])  # those of ours differ by a name
def test_every_loop_fills_an_archive_and_tells_of_it(loop: str) -> None:
    if loop.startswith("qdax"):
        pytest.importorskip("qdax")
    laps: list[tuple[int, float, float]] = []

    def tell(*lap: Any) -> bool:
        laps.append(lap)
        return len(laps) < 3

    archive = LOOPS[loop]("hopper", "smoke", tell, 100.0)
    assert len(laps) == 3
    steps, scores, coverages = zip(*laps, strict=True)
    assert 0 < steps[0] < steps[1] < steps[2]
    assert archive.description["network"]["sizes"] == [11, 8, 3], "the same policies for all"
    assert len(archive) > 0
    if loop.startswith("qdax"):  # who is measured on a border may be counted to another cell
        assert archive.coverage <= coverages[-1]
        assert archive.qd_score <= scores[-1] + 1e-3
    else:
        assert archive.coverage == pytest.approx(coverages[-1])
        assert archive.qd_score == pytest.approx(scores[-1], rel=1e-5)
    if loop not in OURS:  # they only ever add
        assert list(coverages) == sorted(coverages)


def test_a_loop_runs_by_itself_and_its_elites_are_judged_again() -> None:
    words = [sys.executable, "-m", "ppga.bench.loops", "map-elites", "hopper", "smoke", "1", "0", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    told = course([json.loads(line) | {"seconds": 2.0} for line in done.stdout.splitlines()])
    assert len(told.seconds) == 1, "its time was up before it began"
    assert told.peak > 0
    assert 0 < told.filled <= 1


SLOW = Course((10.0, 20.0, 30.0), (100, 300, 500), (1.0, 5.0, 8.0), 2.0, 6.0, 0.5)
FAST = Course((5.0, 10.0, 30.0), (500, 1000, 3000), (4.0, 8.0, 9.0), 1.0, 9.0, 0.75)
LOST = Course((40.0,), (400,), (0.5,), 1.0, 0.25, 0.25)


def test_a_race_is_for_what_the_best_of_the_others_had_in_the_end() -> None:
    results = figures({"ppga": FAST, "map-elites": LOST, "qdax pga-me": SLOW, "pyribs cma-mae": LOST}, "x")
    by_name = {result.name: result for result in results}
    against = "qdax pga-me"
    assert by_name["ppga: until 8/x"] == Result("ppga: until 8/x", 10.0, "s", 10 / 30, against)
    assert by_name["map-elites: until 8/x"] == Result("map-elites: until 8/x", 40.0, "s, not reached")
    assert by_name["qdax pga-me: until 8/x"] == Result("qdax pga-me: until 8/x", 30.0, "s")
    assert by_name["ppga: speed/x"].value == 2500 / 25, "the first iteration compiles"
    assert by_name["ppga: speed/x"].ratio == 5.0
    assert by_name["map-elites: speed/x"].value == 10.0, "there is no other iteration"
    assert by_name["ppga: first iteration/x"].ratio == 0.5
    assert by_name["ppga: peak memory/x"].ratio == 0.5
    assert by_name["ppga: judged again/x"].ratio == 1.5
    assert by_name["ppga: cells/x"].ratio == 1.5
    shown = table(results, "a race")
    assert shown.row_count == 4
    assert list(shown.columns[-1].cells) == ["10", "> 40", "30", "> 40"]


def test_waiting_is_held_against_the_bare_thing() -> None:
    hello = ("-c", "print('hello')")
    python, light, bare, heavy = waited(
        {PYTHON: hello, "ppga --help": hello, BARE: hello, "import x": hello}, rounds=1
    )
    assert (python.ratio, bare.ratio) == (None, None)
    assert (light.against, heavy.against) == (PYTHON, BARE)
    assert light.ratio == pytest.approx(light.value / python.value)
    assert heavy.ratio == pytest.approx(heavy.value / bare.value)
    with pytest.raises(InputError, match=re.escape("ended with 3: ['no']")):
        process("-c", "import sys; print('no'); sys.exit(3)")()


def test_all_that_is_waited_for_can_be_run() -> None:
    for words in waits("hopper").values():
        if words[0] == "-c":
            compile(words[1], "waits", "exec")
    assert "smallest run, an iteration/hopper" in waits("hopper")


def test_all_is_every_benchmark_of_one_machine() -> None:
    planned = parts("hopper", "smoke", 0.5)
    assert set(planned) == {*BENCHMARKS} - {"all", "scale"}
    assert all(words[:3] == (what, "--task", "hopper") for what, words in planned.items())


def test_all_leaves_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)  # as if it were not there
    assert set(parts("hopper", "smoke", 0.5)) == {*BENCHMARKS} - {"all", "scale", "view"}


def test_a_task_of_ones_own_is_known_to_other_processes_by_its_file() -> None:
    word = f"{Path(__file__).parent / 'slider.py'}:Slider"
    name = find(word)
    try:
        assert parts(name, "smoke", 1.0)["race"][2] == word
        assert repr(word) in waits(name)[f"smallest run, an iteration/{name}"][1]
    finally:
        TASKS.pop(name)


def test_all_goes_on_after_a_failure_and_shows_what_is_held_against_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("memory", "--task", "hopper", "--preset", "smoke", "--shape", "3")
    planned = {"wrong": ("fysics",), "memory": words}
    monkeypatch.setattr(
        "ppga.bench.everything.parts", lambda *_: planned
    )  # the rest takes a quarter of an hour
    done = command("bench", "all", "--task", "hopper", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    assert "wrong failed: ppga: unknown benchmark 'fysics'. Did you mean 'physics'?" in shown
    assert "archives/hopper" in shown
    assert "elites/hopper" not in shown, "held against nothing, and so in the file only"
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert results[0] == asdict(Result("elites/hopper", 3.0, "of 3 cells"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("race", "--minutes", "0"), "--minutes must be positive, got 0.0"),
        (("race", "--loops", "ppgo"), "Did you mean 'ppga'?"),
        (("all", "--task", "hoper"), "Did you mean 'hopper'?"),
    ],
)
def test_mistakes_are_told(words: tuple[str, ...], said: str) -> None:
    done = command("bench", *words)
    assert done.returncode == 2
    assert said in done.stderr
