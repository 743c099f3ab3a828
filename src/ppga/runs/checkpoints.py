"""Checkpoints: the whole state of a run in a file, with a checksum beside it.

`000120.safetensors` holds the arrays; `000120.json`, written after it, its SHA-256. A kill at any moment
leaves the checkpoints before it whole, and one without its checksum does not count.
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


def newest(
    folder: Path, report: Callable[[str], None], use: Callable[[Checkpoint], None] = lambda _: None
) -> Checkpoint | None:
    """The newest checkpoint that can be used; None when none was ever finished.

    Args:
        folder: where they are.
        report: told of each one that is damaged.
        use: goes on from a checkpoint, or raises an InputError; then it counts as damaged, and the one before
            is tried.

    Raises:
        InputError: there are checkpoints, and all are damaged.
    """
    reasons = []
    for number in reversed(_numbers(folder)):
        try:
            found = _load(folder / f"{number:06d}.safetensors")
            use(found)
        except InputError as error:
            report(f"checkpoint {number} is damaged and was left out: {error}")
            reasons.append(str(error))
        else:
            return found
    if reasons:
        raise InputError(f"all checkpoints in {folder} are damaged. The newest: {reasons[0]}")
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
    if not isinstance(inside, dict) or inside.get("iteration") != int(data.stem):
        raise InputError(f"{data.name} does not say that it is of iteration {int(data.stem)}.")
    seconds = inside.get("seconds")
    if not is_number(seconds) or seconds < 0:
        raise InputError(f"{data.name}: seconds must be a number of at least 0, got {seconds!r}.")
    return Checkpoint(int(data.stem), float(seconds), arrays)


def _numbers(folder: Path) -> list[int]:
    """Iterations of the checkpoints that were finished, rising."""
    stems = [file.stem for file in folder.glob("*.json") if file.is_file()]
    return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]+", stem) and stem == f"{int(stem):06d}")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}.") from None
