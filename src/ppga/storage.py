"""Files that are either whole or not there: written aside, synced, renamed."""

import errno
import json
import math
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import safetensors

from ppga.errors import InputError, StorageWarning

NumpyArray = np.ndarray[Any, Any]
KEPT_CHECKPOINTS = 3
"""As many as a run keeps: from each one must be able to go on."""


def plain_name(name: str) -> str:
    """What a file may be called that is named after something: no path, nothing that needs quotes."""
    return re.sub(r"[^A-Za-z0-9.=,-]+", "_", name).lstrip(".") or "_"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what is there in the end takes the place of `path`, synced to disk.

    If anything goes wrong, a full disk among it, `path` stays as it was. What an interrupted write of the
    same file has left is removed.
    """
    make_folder(path.parent)
    remove_parts(path.parent, path.name)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as part:
            with suppress(OSError):  # without locks `remove_parts` removes nothing
                lock(part, wait=True)
            yield aside
            sync(aside)
            aside.replace(path)
            sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def remove_parts(folder: Path, name: str | None = None) -> None:
    """Remove what interrupted writes by `replacing` have left in a folder.

    A part that a process is writing is locked and stays; so do all on a file system without locks.

    Args:
        folder: where to look; folders in it are left alone.
        name: of the file that was to be replaced; any by default.
    """
    ours = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[a-z0-9_]{{8}}\.part")
    for part in folder.glob(".*.part"):
        if ours.fullmatch(part.name):
            with suppress(OSError), part.open("r+b") as file:
                if lock(file):
                    part.unlink()


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there, and sync their entries to the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def lock(file: IO[Any], wait: bool = False) -> bool:
    """Take the lock of an open file, which lasts until the file is closed or the process ends.

    Args:
        file: open for writing.
        wait: until another process gives the lock up.

    Returns:
        Whether it was taken; False if another process has it.

    Raises:
        OSError: this file system, or this operating system, has no locks.
    """
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


def warn_once(what: str, message: str) -> None:
    """Warn of something that a file system lacks, unless this process has done so before."""
    if what not in _WARNED:
        _WARNED.add(what)
        warnings.warn(message, StorageWarning, stacklevel=3)


def whole(array: Any) -> NumpyArray:
    """An array of JAX for NumPy, also where its parts are with several processes, which all ask for it."""
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def sync(path: Path) -> None:
    """Have the system put a file, or a folder's entries, on the disk; warn if the file system cannot."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        folder = path.is_dir()  # one that may be written to but not listed cannot be opened
        if error.errno not in _UNSUPPORTED and not (folder and error.errno == errno.EACCES):
            raise
        what = "folders" if folder else "files"
        warn_once(
            f"sync {what}",
            f"{what} cannot be synced to the disk ({path}: {error.strerror}): after a power failure the "
            "last checkpoints may be missing or damaged.",
        )


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


_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""What file systems answer that cannot sync; any other error is one of the disk."""
_WARNED = set[str]()
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
