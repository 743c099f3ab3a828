"""Checkpoints that somebody else has written: used, or left out with a message, whatever they contain."""

import hashlib
import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga.runs.display import Lines
from ppga.search import LegConfig
from ppga.storage import read_tensors, write_json, write_tensors

from helpers.commands import command
from helpers.runs import SPHERE, same_runs
from helpers.untrusted import DEEP, DIGITS, ODD_JSON, refused

SYSTEMS: dict[str, ppga.AlgorithmConfig] = {
    "ppga": replace(SPHERE, legs=LegConfig(iterations=0, first_iterations=0, elite="random")),
    "cma-es": SPHERE.replace(**{"strategy.kind": "cma-es"}),
    "sep-cma-mae": ppga.ALGORITHMS["sep-cma-mae"]
    .config(confirm=None, log=SPHERE.log)
    .replace(batch_size=8, emitters=1, sigma0=5.0),
    "cvt": SPHERE.replace(**{"archive.kind": "cvt", "archive.cells": 30}),
}
Trained = Callable[[str], Path]
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Function that returns a run of five iterations of a system, which is trained at its first call."""
    folder = tmp_path_factory.mktemp("finished")

    def make(system: str) -> Path:
        if not (folder / system).exists():
            budget = ppga.Budget(iterations=5)
            ppga.train("sphere", SYSTEMS[system], budget=budget, output=folder / system)
        return folder / system

    return make


@pytest.fixture
def trained(finished: Trained, tmp_path: Path) -> Trained:
    """Function that returns a copy of such a run."""

    def copy(system: str) -> Path:
        shutil.copytree(finished(system), tmp_path / "run")
        return tmp_path / "run"

    return copy


class Stopping(Lines):
    """Ends a run before its first iteration."""

    def begin(self, title: str, share: float) -> None:
        super().begin(title, share)
        raise KeyboardInterrupt


def messages_of_resume(run: Path) -> str:
    """What is printed when a run is resumed, until its first iteration."""
    output = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        ppga.resume(run, budget=ppga.Budget(iterations=9), display=Stopping(Console(file=output, width=500)))
    return output.getvalue()


def save(data: Path, arrays: Arrays, description: Any) -> None:
    """Rewrite a checkpoint's file, and its checksum."""
    write_tensors(data, arrays, description)
    file, checksum = data.with_suffix(".json"), hashlib.sha256(data.read_bytes()).hexdigest()
    write_json(file, json.loads(file.read_text()) | {"sha256": checksum})


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """A change of one array of a checkpoint."""

    def apply(arrays: Arrays) -> None:
        arrays[name] = np.asarray(change(arrays[name]))

    return apply


def first(value: float) -> Callable[[Any], Any]:
    """A change of the first number of an array."""

    def replaced(values: Any) -> Any:
        changed = values.copy()
        changed.ravel()[0] = value
        return changed

    return replaced


def without(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.pop(name)


def added(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: np.zeros(1)})


def text(content: str) -> Callable[[Any], Any]:
    return lambda _: np.frombuffer(content.encode(), np.uint8)


def a_single_elite(arrays: Arrays) -> None:
    """An archive without the axis of elites."""
    for name in arrays:
        if name.startswith("archive/"):
            arrays[name] = arrays[name][0]


WRONG: dict[str, tuple[str, Callable[[Arrays], None]]] = {
    **{
        f"no {name}": ("ppga", without(name))
        for name in (
            "counters", "problem", "archive/episodes", "archive/index", "soft/threshold", "restart_rule/idle",
            "restart_rule/age", "restart_rule/restarts", "strategy/mean", "strategy/seed",
        )
    },
    **{
        f"an additional {name}": ("ppga", added(name))
        for name in (
            "extra", "problem/1", "archive/extra", "archive/centroids", "soft/extra", "external/replay",
            "strategy/extra", "restart_rule/extra", "emitter/0/mean",
        )
    },
    "a search point of another type": ("ppga", array("problem", lambda values: values.astype(np.float64))),
    "a search point of another shape": ("ppga", array("problem", lambda values: values[:3])),
    "too few counters": ("ppga", array("counters", lambda values: values[:3])),
    "too many counters": ("ppga", array("counters", lambda values: np.append(values, 1))),
    "counters that are NaN": ("ppga", array("counters", lambda values: values * np.nan)),
    "counters below 0": ("ppga", array("counters", lambda values: -values)),
    "counters of another iteration": ("ppga", array("counters", first(4))),
    "too few episodes": ("ppga", array("archive/episodes", lambda values: values[1:])),
    "episodes of another type": ("ppga", array("archive/episodes", lambda values: values.astype(np.float32))),
    "episodes below 0": ("ppga", array("archive/episodes", first(-1))),
    "a cell beyond the last": ("ppga", array("archive/index", lambda values: values + 10_000)),
    "a cell below 0": ("ppga", array("archive/index", first(-1))),
    "a cell twice": ("ppga", array("archive/index", lambda values: values * 0)),
    "an index of another type": ("ppga", array("soft/index", lambda values: values.astype(np.int64))),
    "an objective that is NaN": ("ppga", array("archive/objective", first(np.nan))),
    "a threshold that is infinite": ("ppga", array("soft/threshold", first(np.inf))),
    "a row too few": ("ppga", array("archive/objective", lambda values: values[1:])),
    "solutions of another size": ("ppga", array("archive/solution", lambda values: values[:, 1:])),
    "an archive without rows": ("ppga", a_single_elite),
    "idle of another shape": ("ppga", array("restart_rule/idle", lambda values: np.append(values, 1))),
    "restarts of another type": ("ppga", array("restart_rule/restarts", lambda values: values.astype(bool))),
    "a mean that is NaN": ("ppga", array("strategy/mean", first(np.nan))),
    "a mean of another size": ("ppga", array("strategy/mean", lambda values: values[1:])),
    "a factor of another shape": ("ppga", array("strategy/shape", lambda values: values[0])),
    "a scale of 0": ("ppga", array("strategy/scale", lambda values: values * 0)),
    "a scale in a row": ("ppga", array("strategy/scale", lambda values: values[None])),
    "a generation below 0": ("ppga", array("strategy/generation", lambda values: -values)),
    "a generation of another type": ("ppga", array("strategy/generation", lambda values: values + 0.5)),
    "no random generator": ("cma-es", without("strategy/_rng")),
    "a random generator that is no JSON": ("cma-es", array("strategy/_rng", text("{"))),
    "a random generator, nested": ("cma-es", array("strategy/_rng", text(DEEP))),
    "a random generator of digits": ("cma-es", array("strategy/_rng", text(DIGITS))),
    "another random generator": ("cma-es", array("strategy/_rng", text('{"bit_generator": "MT19937"}'))),
    "half a random generator": ("cma-es", array("strategy/_rng", text('{"bit_generator": "PCG64"}'))),
    "a random generator of lists": ("cma-es", array("strategy/_rng", text("[]"))),
    "a random generator of floats": ("cma-es", array("strategy/_rng", lambda values: values / 2)),
    "a covariance that is NaN": ("cma-es", array("strategy/cov.cov", first(np.nan))),
    "a covariance of another shape": ("cma-es", array("strategy/cov.cov", lambda values: values[0])),
    "another size of the batch": ("sep-cma-mae", array("emitter/0/_batch_size", lambda size: size * 10**6)),
    "restarts that are NaN": ("sep-cma-mae", array("emitter/0/_restarts", lambda number: number * np.nan)),
    "no step size": ("sep-cma-mae", without("emitter/0/_opt.sigma")),
    "an additional emitter": ("sep-cma-mae", added("emitter/1/_itrs")),
    "no centroids": ("cvt", without("archive/centroids")),
    "too few centroids": ("cvt", array("archive/centroids", lambda values: values[1:])),
    "centroids that are NaN": ("cvt", array("archive/centroids", first(np.nan))),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_checkpoint_with_wrong_arrays_and_a_correct_checksum_is_left_out(
    wrong: str, trained: Trained
) -> None:
    system, change = WRONG[wrong]
    run = trained(system)
    data = run / "checkpoints" / "000005.safetensors"
    arrays, description = read_tensors(data)
    change(arrays)
    save(data, arrays, description)
    messages = messages_of_resume(run)
    assert "checkpoint 5 is damaged and was left out" in messages
    assert "resuming after iteration 4" in messages


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_whose_newest_checkpoint_is_wrong_ends_as_if_nothing_had_happened(
    system: str, trained: Trained, tmp_path: Path
) -> None:
    """Nothing that was loaded from the wrong checkpoint is left."""
    run = trained(system)
    data = run / "checkpoints" / "000005.safetensors"
    arrays, description = read_tensors(data)
    save(data, arrays | {"counters": np.append(0, arrays["counters"][1:])}, description)  # checked last
    assert "resuming after iteration 4" in messages_of_resume(run)
    ppga.resume(run, budget=ppga.Budget(iterations=7))
    ppga.train("sphere", SYSTEMS[system], budget=ppga.Budget(iterations=7), output=tmp_path / "undisturbed")
    same_runs(tmp_path / "undisturbed", run)


@pytest.mark.parametrize(
    "description",
    [
        5, [], {"iteration": 5}, {"iteration": "5", "seconds": 1.0}, {"iteration": None, "seconds": 1.0},
        {"iteration": 5, "seconds": math.nan}, {"iteration": 5, "seconds": math.inf},
        {"iteration": 5, "seconds": -1}, {"iteration": 5, "seconds": "x"}, {"iteration": 3, "seconds": 1.0},
    ],
)  # fmt: skip
def test_a_checkpoint_that_describes_itself_oddly_is_left_out(description: Any, trained: Trained) -> None:
    run = trained("ppga")
    data = run / "checkpoints" / "000005.safetensors"
    save(data, read_tensors(data)[0], description)
    assert "resuming after iteration 4" in messages_of_resume(run)


ODD_CHECKSUMS = {
    "an earlier version": '{"version": 1}',
    "a version of digits": f'{{"version": {DIGITS}}}', "an infinite version": '{"version": 1e999}',
    "no checksum": '{"version": 2}', "a checksum that is a number": '{"version": 2, "sha256": 5}',
    "a checksum that is NaN": '{"version": 2, "sha256": NaN}',
    "a deep checksum": f'{{"version": 2, "sha256": {DEEP}}}',
}  # fmt: skip


@pytest.mark.parametrize("odd", [*ODD_JSON, *ODD_CHECKSUMS])
def test_a_checkpoint_with_odd_json_is_left_out(odd: str, trained: Trained) -> None:
    run = trained("ppga")
    content = ODD_JSON[odd] if odd in ODD_JSON else ODD_CHECKSUMS[odd].encode()
    (run / "checkpoints" / "000005.json").write_bytes(content)
    assert "resuming after iteration 4" in messages_of_resume(run)


@pytest.mark.parametrize("name", ["²", "000009999999999", "-1", "٣"])
def test_other_files_among_the_checkpoints_do_no_harm(name: str, trained: Trained) -> None:
    run = trained("ppga")
    (run / "checkpoints" / f"{name}.json").write_text("{}")
    assert "resuming after iteration 5" in messages_of_resume(run)


def test_when_no_checkpoint_can_be_used_the_command_says_why(trained: Trained) -> None:
    run = trained("ppga")
    before = (run / "metrics.jsonl").read_bytes()
    for data in (run / "checkpoints").glob("*.safetensors"):
        arrays, description = read_tensors(data)
        save(data, arrays | {"restart_rule/idle": np.zeros(9)}, description)
    message = refused(command("train", "--resume", str(run), "--iterations", "7"))
    assert "all checkpoints in" in message
    assert "restart_rule: the array 'idle'" in message
    assert (run / "metrics.jsonl").read_bytes() == before
