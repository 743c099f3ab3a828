"""Re-evaluation of an archive, interrupted and resumed."""

import csv
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppga
from ppga.analysis import corrected
from ppga.analysis.corrected import PARTIAL
from ppga.archives import Archive
from ppga.errors import InputError
from ppga.rollouts import Evaluator
from ppga.storage import NumpyArray, read_tensors, write_tensors
from ppga.tasks import TASKS, find

from helpers import slider
from helpers.commands import command
from helpers.slider import Slider

EPISODES = corrected.AT_ONCE // 2
"""Episodes of each elite, so that two elites are evaluated at a time."""
FILES = ("corrected.safetensors", "evaluation.csv", "evaluation.json")
TASK = f"{slider.__file__}:Slider"
KILLED = """
import os, signal, sys
from pathlib import Path
from ppga.analysis import corrected
from ppga.archives import load_archive
from ppga.tasks import find

def progress(done, of):
    if done >= 4:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
find(sys.argv[3])
corrected.evaluate(
    load_archive(folder), int(sys.argv[2]), progress=progress, partial=folder / corrected.PARTIAL
)
"""


@pytest.fixture(scope="module")
def archive() -> Archive:
    """An archive with an odd number of elites."""
    config, _ = ppga.preset("smoke", Slider(), "map-elites")
    trained = ppga.train(Slider(), config, budget=ppga.Budget(iterations=1)).archive
    elites = {name: np.repeat(values[:1], 7, axis=0) for name, values in trained.elites.items()}
    noise = np.random.default_rng(0).normal(0, 0.1, elites["solution"].shape)
    elites |= {
        "index": np.arange(7, dtype=np.int32),
        "solution": elites["solution"] + noise.astype(np.float32),
    }
    return Archive(trained.description, elites)


class InterruptedHereError(Exception):
    """Raised in the middle of an evaluation."""


EVALUATORS: dict[tuple[object, ...], Evaluator] = {}
"""Evaluators that were compiled, by actions, number of episodes, and their length."""


def evaluate(
    archive: Archive,
    partial: Path | None = None,
    stop: int | None = None,
    episodes: int = EPISODES,
    seed: int = 0,
) -> tuple[dict[str, NumpyArray], list[int]]:
    """Objectives and measures of all episodes, and the numbers of elites that progress was reported for.

    Args:
        stop: number of elites after which the evaluation is interrupted.
    """
    reports: list[int] = []

    def progress(done: int, of: int) -> None:
        assert of == len(archive)
        reports.append(done)
        if done == stop:
            raise InterruptedHereError

    task = Slider()
    kind = archive.description["actions"], episodes, task.episode_length
    if kind not in EVALUATORS:
        EVALUATORS[kind] = corrected.make_evaluator(archive, task, episodes)
    results = corrected.play_all(archive, task, episodes, seed, progress, EVALUATORS[kind], partial)
    return results, reports


def assert_equal(a: dict[str, NumpyArray], b: dict[str, NumpyArray]) -> None:
    assert a.keys() == b.keys()
    for name, values in a.items():
        np.testing.assert_array_equal(values, b[name], err_msg=name)


def interrupt(archive: Archive, partial: Path, stop: int = 4) -> None:
    with pytest.raises(InterruptedHereError):
        evaluate(archive, partial, stop)
    assert corrected.evaluated(partial) == stop


def test_an_interrupted_evaluation_has_the_results_of_an_uninterrupted_one(
    archive: Archive, tmp_path: Path
) -> None:
    uninterrupted, reports = evaluate(archive)
    assert reports == [2, 4, 6, 7]
    partial = tmp_path / PARTIAL
    interrupt(archive, partial)
    interrupt(archive, partial, 6)
    resumed, reports = evaluate(archive, partial)
    assert reports == [6, 7], "the first elites are not evaluated again"
    assert_equal(resumed, uninterrupted)
    assert corrected.evaluated(partial) == 7, "until the evaluation is saved"
    again, reports = evaluate(archive, partial)
    assert reports == [7]
    assert_equal(again, uninterrupted)


def changed(archive: Archive) -> Archive:
    solution = archive.elites["solution"].copy()
    solution[-1, -1] += 1e-3
    return Archive(archive.description, {**archive.elites, "solution": solution})


@pytest.mark.parametrize("other", ["archive", "actions", "episodes", "seed", "task", "version"])
def test_partial_results_of_another_evaluation_are_not_used(
    other: str, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / PARTIAL
    interrupt(archive, partial)
    options: dict[str, Any] = {}
    if other == "archive":
        archive = changed(archive)
    elif other == "actions":
        archive = Archive(archive.description | {"actions": "sample"}, archive.elites)
    elif other == "episodes":
        options = {"episodes": EPISODES - 1}
    elif other == "seed":
        options = {"seed": 1}
    elif other == "task":
        monkeypatch.setattr(Slider, "usual_length", 19)
    else:
        monkeypatch.setattr("ppga.machine.__version__", "another")
    expected, all_reports = evaluate(archive, **options)
    results, reports = evaluate(archive, partial, **options)
    assert reports == all_reports, "from the beginning"
    assert_equal(results, expected)


def test_partial_results_of_a_task_whose_file_has_changed_are_not_used(
    archive: Archive, tmp_path: Path
) -> None:
    file, partial = tmp_path / "slider.py", tmp_path / PARTIAL
    file.write_text(Path(TASK.rpartition(":")[0]).read_text())
    find(f"{file}:Slider")
    try:
        interrupt(archive, partial)
        file.write_text(f"{file.read_text()}\n# another\n")
        assert evaluate(archive, partial)[1] == [2, 4, 6, 7]
    finally:
        del TASKS["slider"]


def test_partial_results_that_cannot_be_written_raise_an_error(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to .*file"):
        evaluate(archive, tmp_path / "file" / PARTIAL)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def fewer_columns(file: Path) -> None:
    arrays, description = read_tensors(file)
    write_tensors(file, {**arrays, "objective": arrays["objective"][:, 1:]}, description)


def odd_rows(file: Path) -> None:
    arrays, description = read_tensors(file)
    write_tensors(file, {name: values[:3] for name, values in arrays.items()}, description)


def no_measures(file: Path) -> None:
    arrays, description = read_tensors(file)
    write_tensors(file, {"objective": arrays["objective"]}, description)


def integers(file: Path) -> None:
    arrays, description = read_tensors(file)
    write_tensors(file, {**arrays, "objective": arrays["objective"].astype(np.int32)}, description)


@pytest.mark.parametrize("damage", [cut, zeros, fewer_columns, odd_rows, no_measures, integers])
def test_a_damaged_file_of_partial_results_is_not_used(
    damage: Callable[[Path], None], archive: Archive, tmp_path: Path
) -> None:
    partial = tmp_path / PARTIAL
    interrupt(archive, partial)
    damage(partial)
    _, reports = evaluate(archive, partial)
    assert reports == [2, 4, 6, 7]


def test_the_command_resumes_an_evaluation_that_was_killed(archive: Archive, tmp_path: Path) -> None:
    """By SIGKILL, as SLURM does; the files are identical to those of an uninterrupted evaluation."""
    complete, killed, marked = (tmp_path / name for name in ("complete", "killed", "marked"))
    for folder in (complete, killed):
        archive.save(folder / "archive.safetensors")
    words = [sys.executable, "-c", KILLED, str(killed), str(EPISODES), TASK]
    process = subprocess.run(words, check=False)
    assert process.returncode == -signal.SIGKILL
    assert corrected.evaluated(killed / PARTIAL) == 4
    shutil.copytree(killed, marked)
    arrays, description = read_tensors(marked / PARTIAL)
    write_tensors(marked / PARTIAL, {**arrays, "objective": arrays["objective"] + 1000}, description)
    for folder in (complete, killed, marked):
        done = command("evaluate", str(folder), "--episodes", str(EPISODES), "--task", TASK)
        assert done.returncode == 0, done.stderr
        assert sorted(file.name for file in folder.iterdir()) == sorted(("archive.safetensors", *FILES))
    for name in FILES:
        assert (killed / name).read_bytes() == (complete / name).read_bytes()
    with (marked / "evaluation.csv").open() as file:
        objectives = [float(row["objective_mean"]) for row in csv.DictReader(file)]
    assert [objective > 500 for objective in objectives] == [True] * 4 + [False] * 3, (
        "the first four results are used"
    )
