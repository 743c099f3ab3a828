"""Checkpoints: the complete state of a run in a file, with a checksum beside it.

`000120.safetensors` holds the arrays; `000120.json`, which is written after it, its SHA-256. A kill at any
moment leaves earlier checkpoints intact, and a checkpoint without its checksum is ignored. The arrays and
their names come from `Algorithm.state`; docs/file-formats.md lists them.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppga.errors import InputError
from ppga.storage import (
    KEPT_CHECKPOINTS,
    NumpyArray,
    is_number,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)

FORMAT_VERSION = 2


@dataclass(frozen=True)
class Checkpoint:
    """A state that a run can be resumed from.

    Attributes:
        iteration: the last finished iteration.
        seconds: wall time of the run so far.
        arrays: the algorithm's state.
    """

    iteration: int
    seconds: float
    arrays: Mapping[str, NumpyArray]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a folder; then remove all but the newest KEPT_CHECKPOINTS."""
    data = folder / f"{checkpoint.iteration:06d}.safetensors"
    description = {
        "version": FORMAT_VERSION,
        "iteration": checkpoint.iteration,
        "seconds": checkpoint.seconds,
    }
    write_tensors(data, checkpoint.arrays, description)
    write_json(data.with_suffix(".json"), {**description, "sha256": _sha256(data)})
    kept = _numbers(folder)[-KEPT_CHECKPOINTS:]
    for file in sorted(folder.glob("[0-9]*")):  # .json first: without it, the checkpoint is ignored
        is_checkpoint = file.suffix in (".json", ".safetensors") and file.stem.isdecimal()
        if is_checkpoint and int(file.stem) not in kept:
            file.unlink(missing_ok=True)


def newest(
    folder: Path, report: Callable[[str], None], use: Callable[[Checkpoint], None] = lambda _: None
) -> Checkpoint | None:
    """The newest checkpoint that can be used; None if none was ever finished.

    Args:
        folder: folder of the checkpoints.
        report: called with a message for each damaged checkpoint.
        use: restores a checkpoint, or raises an InputError; then the checkpoint counts as damaged, and the
            one before it is tried.

    Raises:
        InputError: all checkpoints are damaged.
    """
    reasons = []
    for number in reversed(_numbers(folder)):
        try:
            checkpoint = _load(folder / f"{number:06d}.safetensors")
            use(checkpoint)
        except InputError as error:
            report(f"checkpoint {number} is damaged and was left out: {error}")
            reasons.append(str(error))
        else:
            return checkpoint
    if reasons:
        raise InputError(f"all checkpoints in {folder} are damaged. The newest: {reasons[0]}")
    return None


def last_iteration(folder: Path) -> int:
    """Iteration of the newest checkpoint; 0 if there is none."""
    return max(_numbers(folder), default=0)


def _load(data: Path) -> Checkpoint:
    file = data.with_suffix(".json")
    description: Any = read_json(file)
    if isinstance(description, dict) and description.get("version") == 1:
        raise InputError(f"{file} was written by an earlier version of ppga and cannot be read.")
    if not isinstance(description, dict) or description.get("version") != FORMAT_VERSION:
        raise InputError(f"{file} is not a checkpoint of version {FORMAT_VERSION}.")
    if not data.is_file():
        raise InputError(f"{data.name} is missing.")
    if _sha256(data) != description.get("sha256"):
        raise InputError(f"{data.name} does not have the checksum that it was written with.")
    arrays, header = read_tensors(data)
    if not isinstance(header, dict) or header.get("iteration") != int(data.stem):
        raise InputError(f"{data.name}: its header names another iteration than {int(data.stem)}.")
    seconds = header.get("seconds")
    if not is_number(seconds) or seconds < 0:
        raise InputError(f"{data.name}: seconds must be a number of at least 0, got {seconds!r}.")
    return Checkpoint(int(data.stem), float(seconds), arrays)


def _numbers(folder: Path) -> list[int]:
    """Iterations of the finished checkpoints, rising."""
    stems = [file.stem for file in folder.glob("*.json") if file.is_file()]
    return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]+", stem) and stem == f"{int(stem):06d}")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}.") from None
