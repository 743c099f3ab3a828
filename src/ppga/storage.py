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
from typing import IO, Any, BinaryIO, TypeGuard

import numpy as np

from ppga.errors import InputError, StorageWarning
from ppga.limits import DEEPEST_JSON, LARGEST, LARGEST_JSON, LONGEST_INTEGER, MOST_AXES

NumpyArray = np.ndarray[Any, Any]
Like = tuple[np.dtype[Any], tuple[int, ...]]
"""An array's kind of numbers, and its shape."""
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
        with path.open("rb") as file:
            text = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_JSON) + 1)  # takes as much memory
        if len(text) > LARGEST_JSON:
            raise ValueError(f"it has more than {LARGEST_JSON:,} bytes")
        return parse_json(text)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None


def parse_json(text: bytes) -> Any:
    """Content of a JSON text in UTF-8.

    NaN and the infinities are numbers, as for Python.

    Raises:
        ValueError: it is not JSON; or it is nested too deeply, or has a whole number of too many digits or
            half of a surrogate pair, with which Python cannot do everything that it does with JSON.
    """
    decoded = text.decode()
    try:
        content = json.loads(decoded, parse_int=_integer if _MANY_DIGITS.search(decoded) else None)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if decoded.count("[") + decoded.count("{") > DEEPEST_JSON or "\\u" in decoded:  # else there is no need
        _check_content(content)
    return content


_MANY_DIGITS = re.compile(f"[0-9]{{{LONGEST_INTEGER}}}")
_TOO_DEEP = f"it is nested more than {DEEPEST_JSON} levels deep"


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"it has a whole number of {len(text)} digits")
    return int(text)


def _check_content(content: Any) -> None:
    """Raise a ValueError for JSON that is nested too deeply, or has half of a surrogate pair in a text."""
    level = [content]
    for _ in range(DEEPEST_JSON):
        for value in level:
            if isinstance(value, str):
                value.encode()  # raises a ValueError
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value if isinstance(value, list) else (*value, *value.values()))
        ]
    if level:
        raise ValueError(_TOO_DEEP)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether something from a JSON text is a number that is finite in single precision, too."""
    return isinstance(value, int | float) and abs(value) <= LARGEST


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
    if len(text) > LARGEST_JSON:  # it could not be read again
        raise InputError(f"{path} would need a header of {len(text):,} bytes; at most {LARGEST_JSON:,}.")
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for part in parts(arrays[name]):
                file.write(np.ascontiguousarray(part).data)


def read_tensors(path: Path, mapped: bool = False) -> tuple[dict[str, NumpyArray], Any]:
    """Arrays and description of a file by `write_tensors`, or an InputError that names it.

    Args:
        path: the file.
        mapped: leave the arrays on disk, to be read when used; they cannot be written to.
    """
    try:
        with path.open("rb") as file:  # once: another file may take its place at any moment
            arrays, metadata = _read(file, mapped)
        description = parse_json(metadata["ppga"].encode()) if "ppga" in metadata else None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    except MemoryError:
        raise InputError(f"cannot read {path}: its arrays take more memory than there is.") from None
    if "ppga" not in metadata:
        raise InputError(f"{path} was not written by ppga: its header has no description.")
    return arrays, description


_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""What file systems answer that cannot sync; any other error is one of the disk."""
_WARNED = set[str]()


def like(values: Any) -> Like:
    """Kind and shape of an array."""
    return values.dtype, values.shape


def check_arrays(found: Mapping[str, NumpyArray], expected: Mapping[str, Like]) -> None:
    """Raise an InputError unless there are exactly the expected arrays, of the expected kinds and shapes."""
    for name in sorted(found.keys() ^ expected.keys()):
        raise InputError(f"the array {name!r} is {'missing' if name in expected else 'not expected'}.")
    for name, (dtype, shape) in expected.items():
        if like(found[name]) != (dtype, shape):
            values = found[name]
            raise InputError(f"the array {name!r} is {values.dtype}{values.shape}, expected {dtype}{shape}.")


_KINDS = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64",
    "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL",
}  # fmt: skip
"""NumPy's kinds of numbers, as safetensors calls them."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_PART = 2**24
"""Bytes written at a time."""


def parts(values: NumpyArray) -> Iterator[NumpyArray]:
    """An array in parts of some megabytes, each a few rows of it."""
    if not values.shape or not len(values):
        yield np.asarray(values).reshape(-1)
        return
    rows = max(1, _PART // max(1, math.prod(values.shape[1:]) * values.dtype.itemsize))
    for start in range(0, len(values), rows):
        yield np.asarray(values[start : start + rows])


def _read(file: BinaryIO, mapped: bool) -> tuple[dict[str, NumpyArray], dict[str, str]]:
    """Arrays and metadata of a safetensors file, or a ValueError that says what is wrong with it."""
    length = int.from_bytes(file.read(8), "little")
    begin = 8 + length
    room = os.fstat(file.fileno()).st_size - begin
    if room < 0:
        raise ValueError("it is cut off")
    if length > LARGEST_JSON:
        raise ValueError(f"its header has more than {LARGEST_JSON:,} bytes")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a table")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not texts")
    places = {name: _place(name, entry) for name, entry in header.items()}
    bounds = sorted((start, end) for _, _, start, end in places.values())
    if [0, *(end for _, end in bounds)] != [*(start for start, _ in bounds), room]:
        raise ValueError("its arrays do not fill it one after the other")
    if mapped:
        data = np.memmap(file, np.uint8, "r", begin, (room,)) if room else np.zeros(0, np.uint8)
        return {
            name: data[start:end].view(kind).reshape(shape)
            for name, (kind, shape, start, end) in places.items()
        }, metadata
    arrays = {}
    for name, (kind, shape, start, _) in places.items():
        file.seek(begin + start)
        arrays[name] = np.fromfile(file, kind, math.prod(shape)).reshape(shape)
    return arrays, metadata


def _place(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Kind of numbers, shape, first byte and end of an array, by its entry in a header; or a ValueError."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} in its header is not an array")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _NAMES:
        raise ValueError(f"{name!r} has numbers of kind {kind!r}; possible: {', '.join(_NAMES)}")
    dtype = np.dtype(f"<{_NAMES[kind]}")
    if not (
        _are_counts(shape)
        and len(shape) <= MOST_AXES
        and _are_counts(offsets)
        and len(offsets) == 2
        and offsets[1] - offsets[0] == math.prod(shape) * dtype.itemsize
    ):
        raise ValueError(f"{name!r} cannot be of shape {shape!r} at {offsets!r}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
