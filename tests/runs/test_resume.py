"""Resumed runs end as if nothing had interrupted them, and report what is damaged."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import Budget, InputError
from ppga.problems import Sphere
from ppga.runs.display import Lines
from ppga.runs.folder import RunFolder

from helpers.runs import SPHERE, same_runs
from helpers.slider import Slider


def test_an_extended_run_equals_a_longer_run(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=12), output=tmp_path / "undisturbed")
    ppga.train("sphere", SPHERE, budget=Budget(iterations=5), output=tmp_path / "run")
    outcome = ppga.resume(tmp_path / "run")
    assert outcome.record is None, "it was finished"
    ppga.resume(tmp_path / "run", budget=Budget(iterations=12))
    same_runs(tmp_path / "undisturbed", tmp_path / "run")
    assert RunFolder(tmp_path / "run").read()[2] == Budget(iterations=12)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "json", "missing"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    ppga.train("sphere", SPHERE, budget=Budget(iterations=12), output=undisturbed)
    ppga.train("sphere", SPHERE, budget=Budget(iterations=6), output=run)
    data = run / "checkpoints" / "000006.safetensors"
    content = bytearray(data.read_bytes())
    if damage == "truncated":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[-1] ^= 1
        data.write_bytes(content)
    elif damage == "json":
        data.with_suffix(".json").write_text("{")
    else:
        data.unlink()
    output = io.StringIO()
    ppga.resume(run, budget=Budget(iterations=12), display=Lines(Console(file=output, width=200)))
    assert "checkpoint 6 is damaged" in output.getvalue()
    assert "resuming after iteration 5" in output.getvalue()
    same_runs(undisturbed, run)


def test_damage_of_all_checkpoints_is_an_error(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=2), output=tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(InputError, match=r"all checkpoints .* damaged"):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=4))


def test_remains_of_an_interrupted_write_do_no_harm(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=8), output=tmp_path / "undisturbed")
    run = tmp_path / "run"
    ppga.train("sphere", SPHERE, budget=Budget(iterations=4), output=run)
    (run / "checkpoints" / "000005.safetensors").write_bytes(b"half")
    (run / "checkpoints" / ".000005.json.0123abcd.part").write_bytes(b"")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "qd')
    ppga.resume(run, budget=Budget(iterations=8))
    same_runs(tmp_path / "undisturbed", run)
    assert len(list((run / "checkpoints").iterdir())) == 6


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_and_the_last_checkpoint_survives(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", SPHERE, budget=Budget(iterations=3), output=run)
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/full")

    def cut_after(self: RunFolder, *_: Any) -> None:
        """Leave the full device in place."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "cut_after", cut_after)
        with pytest.raises(InputError, match=r"No space left on device.*--resume"):
            ppga.resume(run, budget=Budget(iterations=6))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").write_text(metrics)
    ppga.resume(run, budget=Budget(iterations=6))
    ppga.train("sphere", SPHERE, budget=Budget(iterations=6), output=tmp_path / "undisturbed")
    same_runs(tmp_path / "undisturbed", run)


LIMITED = """
import resource, signal, sys
from ppga.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))  # less than a checkpoint, more than all metrics
main()
"""


def test_a_disk_too_full_for_a_checkpoint_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = SPHERE.replace(**{"branches": 64, "log.snapshot_iterations": 6})
    ppga.train("sphere", config, budget=Budget(iterations=3), output=run)
    arguments = ["train", "--resume", str(run), "--iterations", "6", "--quiet"]
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "cannot write to" in result.stderr
    assert "The last checkpoint is intact" in result.stderr
    assert "Traceback" not in result.stderr
    ppga.resume(run, budget=Budget(iterations=6))
    ppga.train("sphere", config, budget=Budget(iterations=6), output=tmp_path / "undisturbed")
    same_runs(tmp_path / "undisturbed", run)


@pytest.mark.parametrize("algorithm", ["ppga", "ppga-no-measures"])
def test_the_preset_paper_scripts_resumes_exactly(algorithm: str, tmp_path: Path) -> None:
    """With restarts from the soft archive, and everything as in the authors' code but the sizes."""
    config, _ = ppga.preset("paper-scripts", Slider(), algorithm)
    config = config.replace(**{
        "branches": 4, "jacobian_updates": 1, "walk_updates": 2, "evaluation.episodes": 2,
        "network.actor": (8,), "network.critic": (8,), "ppo.environments": 6, "ppo.rollout_length": 8,
        "ppo.epochs": 2, "ppo.minibatches": 2, "archive.threshold_min": 9.0, "archive.alpha": 1.0,
        "log.checkpoint_seconds": 0.0, "log.snapshot_iterations": 1,
    })  # fmt: skip
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    outcome = ppga.train(Slider(), config, budget=Budget(iterations=6), output=undisturbed)
    assert outcome.record is not None
    assert 0 < outcome.record["restarts"] < 6
    ppga.train(Slider(), config, budget=Budget(iterations=3), output=run)
    ppga.resume(run, budget=Budget(iterations=6), task=Slider())
    same_runs(undisturbed, run)


def test_a_run_is_not_resumed_on_another_task(tmp_path: Path) -> None:
    small = Sphere(solution_size=10)
    ppga.train(small, SPHERE, budget=Budget(iterations=1), output=tmp_path / "run")
    with pytest.raises(InputError, match=r"task.dimensions \(was 10, now 20\)"):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    resumed = ppga.resume(tmp_path / "run", budget=Budget(iterations=2), task=small)
    assert resumed.record is not None


def test_a_cvt_run_resumes_with_its_own_cells(tmp_path: Path) -> None:
    config = SPHERE.replace(**{"archive.kind": "cvt", "archive.cells": 30})
    ppga.train("sphere", config, budget=Budget(iterations=6), output=tmp_path / "undisturbed")
    ppga.train("sphere", config, budget=Budget(iterations=3), output=tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:  # on many cores, k-means ends differently every time
        patch.setattr("ribs.archives._cvt_archive.k_means_centroids", other_centroids)
        ppga.resume(tmp_path / "run", budget=Budget(iterations=6))
    same_runs(tmp_path / "undisturbed", tmp_path / "run")


def other_centroids(centroids: int, **_: Any) -> tuple[Any, None]:
    return np.random.default_rng(9).uniform(-50, 50, (centroids, 2)).astype(np.float32), None
