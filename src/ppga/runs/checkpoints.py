"""Checkpoints: the whole state of a run in a file, with a checksum beside it.

`000120.safetensors` holds the arrays; `000120.json`, written after it, its SHA-256. A kill at any moment
leaves the checkpoints before it whole, and one without its checksum does not count.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppga.errors import InputError
from ppga.storage import (
    KEPT_CHECKPOINTS,
    NumpyArray,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A state to go on from.

    Attributes:
        iteration: after which it was taken.
        seconds: wall time spent until then.
        arrays: the algorithm's state.
    """

    iteration: int
    seconds: float
    arrays: Mapping[str, NumpyArray]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; then remove all but the newest few."""
    data = folder / f"{checkpoint.iteration:06d}.safetensors"
    description = {
        "version": FORMAT_VERSION,
        "iteration": checkpoint.iteration,
        "seconds": checkpoint.seconds,
    }
    write_tensors(data, checkpoint.arrays, description)
    write_json(data.with_suffix(".json"), {**description, "sha256": _sha256(data)})
    kept = _numbers(folder)[-KEPT_CHECKPOINTS:]
    for file in sorted(folder.glob("[0-9]*")):  # of each the .json first: without it the other does not count
        ours = file.suffix in (".json", ".safetensors") and file.stem.isdecimal()
        if ours and int(file.stem) not in kept:
            file.unlink(missing_ok=True)


def newest(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint; None when none was ever finished.

    Args:
        folder: where they are.
        report: told of each one that is damaged.

    Raises:
        InputError: there are checkpoints, and all are damaged.
    """
    numbers = _numbers(folder)
    for number in reversed(numbers):
        data = folder / f"{number:06d}.safetensors"
        try:
            return _load(data)
        except InputError as error:
            report(f"checkpoint {number} is damaged and was left out: {error}")
    if numbers:
        raise InputError(f"all checkpoints in {folder} are damaged.")
    return None


def last_iteration(folder: Path) -> int:
    """Iteration of the newest checkpoint; 0 if there is none."""
    return max(_numbers(folder), default=0)


def _load(data: Path) -> Checkpoint:
    description: Any = read_json(data.with_suffix(".json"))
    if not isinstance(description, dict) or description.get("version") != FORMAT_VERSION:
        raise InputError(f"{data.with_suffix('.json')} is not a checkpoint of version {FORMAT_VERSION}.")
    if not data.is_file():
        raise InputError(f"{data.name} is missing.")
    if _sha256(data) != description.get("sha256"):
        raise InputError(f"{data.name} does not have the checksum it was written with.")
    arrays, inside = read_tensors(data)
    return Checkpoint(int(inside["iteration"]), float(inside["seconds"]), arrays)


def _numbers(folder: Path) -> list[int]:
    """Iterations of the checkpoints that were finished, rising."""
    return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdigit())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
