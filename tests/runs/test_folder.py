"""The folder of a run: contents, protection against other processes, and folders that are rejected."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppga
from ppga import Budget, InputError
from ppga.runs import folder as folder_module
from ppga.runs.build import make_algorithm
from ppga.runs.folder import RunFolder, read_lines

from helpers.runs import SPHERE


def test_a_run_writes_all_its_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = SPHERE.replace(**{"log.tensorboard": True, "log.snapshot_iterations": 4})
    outcome = ppga.train("sphere", config, budget=Budget(iterations=9), output=run)
    content = json.loads((run / "config.json").read_text())
    assert content["task"] == "sphere"
    assert content["config"]["algorithm"] == "ppga"
    assert content["config"]["branches"] == 8
    assert content["machine"]["cores"] >= 1
    assert {"jax", "mujoco", "ppga"} <= content["machine"]["versions"].keys()
    metrics = list(read_lines(run / "metrics.jsonl"))
    assert [line["iteration"] for line in metrics] == list(range(1, 10))
    for name in (
        "evaluations", "env_steps", "wall_time", "qd_score", "qd_offset", "coverage", "best", "mean",
        "elites", "new_elites", "soft_entries", "restarts", "nonfinite", "search_objective",
        "search_measures", "strategy_mean", "strategy_scale", "times",
    ):  # fmt: skip
        assert name in metrics[-1], name
    archive = ppga.load_archive(run)
    assert metrics[-1]["qd_score"] == pytest.approx(archive.qd_score)
    assert metrics[-1]["best"] == archive.elites["objective"].max()
    assert metrics[-1]["coverage"] == archive.coverage == len(archive) / 400
    assert metrics[-1]["evaluations"] == 9 * 9
    for name, values in outcome.archive.elites.items():
        np.testing.assert_array_equal(archive.elites[name], values)
    snapshots = list(read_lines(run / "cells.jsonl"))
    assert [snapshot["iteration"] for snapshot in snapshots] == [4, 8]
    assert len(snapshots[1]["cells"]) == metrics[7]["elites"]
    assert (run / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events*"))
    checkpoints = sorted(file.name for file in (run / "checkpoints").iterdir())
    assert checkpoints == [f"00000{i}.{suffix}" for i in (7, 8, 9) for suffix in ("json", "safetensors")]


def test_another_run_is_never_overwritten(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(InputError, match="already holds a run"):
        ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / "other")
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match="is a file"):
            ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / place)


def test_places_that_cannot_be_written_to_are_reported() -> None:
    for place in ("/proc/run", "/dev/null/run"):  # not even root can
        with pytest.raises(InputError, match=r"cannot (write|create)"):
            ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=place)


def test_folders_that_are_no_runs_of_this_version_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run's folder"):
        ppga.resume(tmp_path)
    run = tmp_path / "run"
    ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=run)
    content = json.loads((run / "config.json").read_text())
    for change, message in (
        ({"version": 1}, "written by an earlier version"),
        ({"version": 99}, "another version"),
        ({"format": "other"}, "does not describe a run"),
        ({"config": {"algorithm": "ppga", "branchs": 3}}, "Did you mean 'branches'"),
        ({"config": {"algorithm": "ppga", "branches": "many"}}, "expected int"),
        ({"config": {"algorithm": "pppga"}}, "Did you mean 'ppga'"),
        ({"config": {"branches": 3}}, "names its algorithm"),
        ({"config": []}, "table that names its algorithm"),
        ({"problem": None}, "started with another task"),
        ({"task": "mine"}, r"ppga.resume\(run, task=...\)"),
    ):
        (run / "config.json").write_text(json.dumps(content | change))
        with pytest.raises(InputError, match=message):
            ppga.resume(run)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / "run")
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(InputError, match="being trained by another process"),
    ):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    ppga.resume(tmp_path / "run", budget=Budget(iterations=2))


def test_of_two_runs_that_start_at_once_the_second_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see a free folder, and the other run is the first to lock it."""
    folder, others = RunFolder(tmp_path / "run"), [replace(SPHERE, seed=7)]

    def make_after_another_run(*arguments: Any) -> Any:
        algorithm = make_algorithm(*arguments)
        if others:
            ppga.train("sphere", others.pop(), budget=Budget(iterations=1), output=folder.path)
        return algorithm

    monkeypatch.setattr("ppga.runs.trainer.make_algorithm", make_after_another_run)
    with pytest.raises(InputError, match="already holds a run"):
        ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=folder.path)
    assert folder.read()[1].seed == 7
    another = RunFolder(tmp_path / "another")
    with another.locked(), pytest.raises(InputError, match="being trained by another process"):
        ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=another.path)
    assert not another.config.exists()


def test_the_recorded_commit_is_that_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "own.py").touch()
    git("add", "own.py")
    git("commit", "-m", "a user's own file")
    (tmp_path / "folder.py").touch()
    monkeypatch.setattr(folder_module, "__file__", str(tmp_path / "folder.py"))
    assert folder_module._commit() is None, "an installed package inside a user's repository"
    git("add", "folder.py")
    git("commit", "-m", "the package")
    assert len(folder_module._commit() or "") == 12
