"""Files that are either whole or not there: written aside, synced, renamed."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ppga.errors import InputError

NumpyArray = np.ndarray[Any, Any]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what is there in the end takes the place of `path`, synced to disk.

    If anything goes wrong, a full disk among it, `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o666 & ~_umask())
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the system put a file, or a folder's entries, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a text file."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Content of a JSON file, or an InputError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None


def write_tensors(path: Path, arrays: Mapping[str, NumpyArray], description: Any) -> None:
    """Replace a safetensors file; the description travels as JSON in its header."""
    with replacing(path) as aside:
        safetensors.numpy.save_file(
            {name: values.copy("C") for name, values in arrays.items()},
            aside,
            metadata={"ppga": json.dumps(description)},
        )


def read_tensors(path: Path) -> tuple[dict[str, NumpyArray], Any]:
    """Arrays and description of a file by `write_tensors`, or an InputError that names it."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "ppga" not in metadata:
            raise InputError(f"{path} was not written by ppga: its header has no description.")
        return arrays, json.loads(metadata["ppga"])
    except (OSError, safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
