"""Files of archives: safetensors with a JSON header; they are read without JAX, and without pickle."""

import os
from pathlib import Path
from typing import overload

import numpy as np

from ppga.archives import included
from ppga.archives.archive import Agent, Archive, Cell, best_of_each
from ppga.archives.format import (
    FORMAT,
    HALF_PRECISION,
    MAIN_FIELDS,
    SINGLE_PRECISION,
    check_archive,
    check_format,
    check_shape,
)
from ppga.errors import InputError
from ppga.storage import read_tensors

__all__ = [
    "ARCHIVED", "ARCHIVE_FILE", "CORRECTED", "CORRECTED_FILE", "EVALUATION_FILE", "FORMAT", "HALF_PRECISION",
    "MAIN_FIELDS", "PLACES", "SINGLE_PRECISION", "WHICH", "Agent", "Archive", "Cell", "best_of_each",
    "check_shape", "find_archive", "load_archive", "pretrained",
]  # fmt: skip

ARCHIVE_FILE, CORRECTED_FILE = "archive.safetensors", "corrected.safetensors"
EVALUATION_FILE = "evaluation.json"
"""Metrics of the corrected archive, beside it."""
PLACES = (f"archive/{ARCHIVE_FILE}", ARCHIVE_FILE)
"""Where a folder may hold an archive: that of a run, or the archive's own."""
ARCHIVED, CORRECTED = WHICH = ("archived", "corrected")
"""The archives of a run: as trained, and as re-evaluated by `ppga evaluate`."""


def find_archive(path: str | os.PathLike[str]) -> Path:
    """The file of an archive.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
    """
    place = included.find_included(path) or Path(path)
    files = [place] if place.is_file() else [place / name for name in PLACES if (place / name).is_file()]
    if not files:
        raise InputError(f"no archive in {place}: looked for {' and '.join(PLACES)}.")
    return files[0]


def load_archive(path: str | os.PathLike[str], *, mapped: bool = False) -> Archive:
    """Read an archive.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        mapped: leave the elites on disk and read them when they are used, for archives larger than memory.
            Solutions in half precision are still read at once: in memory they are in single precision.

    Raises:
        InputError: there is no archive, it is damaged, or an earlier version of ppga has written it.
    """
    file = find_archive(path)
    arrays, description = read_tensors(file, mapped)
    check_format(description, file)
    elites = {
        name.removeprefix("elites/"): values.astype(np.float32) if values.dtype == np.float16 else values
        for name, values in arrays.items()
        if name.startswith("elites/")
    }
    archive = Archive(description, elites, arrays.get("centroids"))
    check_archive(archive, file)
    return archive


@overload
def pretrained() -> tuple[str, ...]: ...


@overload
def pretrained(name: str) -> Archive: ...


def pretrained(name: str | None = None) -> tuple[str, ...] | Archive:
    """An archive that is included in the package; without a name, the names of all of them.

    Example:
        >>> archive = pretrained("walker2d")  # doctest: +SKIP
        >>> act = archive.policy(archive.best())  # doctest: +SKIP

    Raises:
        InputError: there is no pretrained archive of that name.
    """
    return included.names() if name is None else load_archive(f"{included.PREFIX}{name}")
