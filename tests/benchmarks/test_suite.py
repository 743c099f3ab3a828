"""`python -m benchmarks all`, and the benchmark of imports and smallest runs."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ppga.errors import InputError
from ppga.tasks import TASKS, find

from benchmarks.commands import BENCHMARKS
from benchmarks.harness import Result
from benchmarks.start import BASE_IMPORTS, PYTHON, commands, process, time_commands
from benchmarks.suite import plan
from helpers.commands import HELPERS, benchmark


def test_seconds_are_compared_with_those_of_the_reference() -> None:
    hello = ("-c", "print('hello')")
    python, light, base, heavy = time_commands(
        {PYTHON: hello, "ppga --help": hello, BASE_IMPORTS: hello, "import x": hello}, rounds=1
    )
    assert (python.ratio, base.ratio) == (None, None)
    assert (light.against, heavy.against) == (PYTHON, BASE_IMPORTS)
    assert light.ratio == pytest.approx(light.value / python.value)
    assert heavy.ratio == pytest.approx(heavy.value / base.value)
    with pytest.raises(InputError, match=re.escape("ended with exit code 3: ['no']")):
        process("-c", "import sys; print('no'); sys.exit(3)")()


def test_all_commands_that_are_timed_are_valid_python() -> None:
    timed = commands("hopper")
    for words in timed.values():
        if words[0] == "-c":
            compile(words[1], "command", "exec")
    assert "smallest run, one iteration/hopper" in timed


def test_all_runs_every_benchmark_of_one_machine() -> None:
    planned = plan("hopper", "smoke", 0.5)
    assert set(planned) == {*BENCHMARKS} - {"all", "scale"}
    assert all(words[:3] == (name, "--task", "hopper") for name, words in planned.items())


def test_all_leaves_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)  # as if it were not installed
    assert set(plan("hopper", "smoke", 0.5)) == {*BENCHMARKS} - {"all", "scale", "view"}


def test_other_processes_find_a_task_of_a_user_by_its_file() -> None:
    word = f"{HELPERS / 'slider.py'}:Slider"
    task = find(word)
    try:
        assert plan(task, "smoke", 1.0)["race"][2] == word
        assert repr(word) in commands(task)[f"smallest run, one iteration/{task}"][1]
    finally:
        TASKS.pop(task)


def test_all_continues_after_a_failure_and_shows_results_with_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("memory", "--task", "hopper", "--preset", "smoke", "--shape", "3")
    planned = {"wrong": ("fysics",), "memory": words}
    monkeypatch.setattr(
        "benchmarks.suite.plan", lambda *_: planned
    )  # the real one takes a quarter of an hour
    done = benchmark("all", "--task", "hopper", "--json", "out.json", folder=tmp_path)
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    assert "wrong failed: benchmarks: unknown benchmark 'fysics'. Did you mean 'physics'?" in shown
    assert "archives/hopper" in shown
    assert "elites/hopper" not in shown, "it has no reference, and so is only in the file"
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert results[0] == asdict(Result("elites/hopper", 3.0, "of 3 cells"))
