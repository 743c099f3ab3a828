"""Files that are either whole or not there: written aside, synced, renamed."""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors

from ppga.errors import InputError

NumpyArray = np.ndarray[Any, Any]
KEPT_CHECKPOINTS = 3
"""As many as a run keeps: from each one must be able to go on."""


def plain_name(name: str) -> str:
    """What a file may be called that is named after something: no path, nothing that needs quotes."""
    return re.sub(r"[^A-Za-z0-9.=,-]+", "_", name).lstrip(".") or "_"


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


def whole(array: Any) -> NumpyArray:
    """An array of JAX for NumPy, also where its parts are with several processes, which all ask for it."""
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


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
    """Replace a safetensors file; the description travels as JSON in its header.

    Arrays are written a few rows at a time, so one that is mapped from another file never needs to fit in
    memory.
    """
    header: dict[str, Any] = {"__metadata__": {"ppga": json.dumps(description)}}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that all are aligned
    end = 0
    for name in names:
        values = arrays[name]
        start, end = end, end + math.prod(values.shape) * values.dtype.itemsize
        kind = _KINDS[values.dtype.newbyteorder("=").str[1:]]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for part in _parts(arrays[name]):
                file.write(np.ascontiguousarray(part).data)


def read_tensors(path: Path, mapped: bool = False) -> tuple[dict[str, NumpyArray], Any]:
    """Arrays and description of a file by `write_tensors`, or an InputError that names it.

    Args:
        path: the file.
        mapped: leave the arrays on disk, to be read when used; they cannot be written to.
    """
    try:
        arrays, metadata = _mapped(path) if mapped else _whole(path)
        description = json.loads(metadata["ppga"]) if "ppga" in metadata else None
    except (OSError, safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    if "ppga" not in metadata:
        raise InputError(f"{path} was not written by ppga: its header has no description.")
    return arrays, description


_KINDS = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64",
    "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL",
}  # fmt: skip
"""NumPy's kinds of numbers, as safetensors calls them."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_PART = 2**24
"""Bytes written at a time."""


def _parts(values: NumpyArray) -> Iterator[NumpyArray]:
    """Some rows after the other."""
    if not values.shape or not len(values):
        yield np.asarray(values).reshape(-1)
        return
    rows = max(1, _PART // max(1, math.prod(values.shape[1:]) * values.dtype.itemsize))
    for start in range(0, len(values), rows):
        yield np.asarray(values[start : start + rows])


def _whole(path: Path) -> tuple[dict[str, NumpyArray], dict[str, str]]:
    with safetensors.safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _mapped(path: Path) -> tuple[dict[str, NumpyArray], dict[str, str]]:
    """Arrays of one file, opened once: another may take its place at any moment."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        room = os.fstat(file.fileno()).st_size - 8 - size
        if room < 0:
            raise ValueError("it is cut off")
        header = json.loads(file.read(size))
        try:
            metadata = dict(header.pop("__metadata__", {}))
            arrays = {name: _mapped_array(file, 8 + size, room, **entry) for name, entry in header.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its header is not whole ({error!r})") from None
    return arrays, metadata


def _mapped_array(
    file: BinaryIO, begin: int, room: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> NumpyArray:
    kind = np.dtype(f"<{_NAMES[dtype]}")
    start, end = data_offsets
    if not (0 <= start <= end <= room and end - start == math.prod(shape) * kind.itemsize):
        raise ValueError(data_offsets)
    if start == end:  # nothing to map
        return np.zeros(shape, kind)
    return np.memmap(file, kind, "r", begin + start, tuple(shape))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
