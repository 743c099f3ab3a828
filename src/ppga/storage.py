"""Files that are either complete or absent: written to a temporary file, synced, and renamed."""

import errno
import json
import math
import os
import re
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeGuard

import numpy as np

from ppga.errors import InputError, StorageWarning
from ppga.limits import DEEPEST_JSON, LARGEST, LARGEST_JSON, LONGEST_INTEGER, MOST_AXES
from ppga.types import ArraySpec as ArraySpec
from ppga.types import NumpyArray as NumpyArray

KEPT_CHECKPOINTS = 3
"""Number of checkpoints that a run keeps. The run can be resumed from each of them."""


def plain_name(name: str) -> str:
    """A file name made of a text: without folders, and without characters that a shell would interpret."""
    return re.sub(r"[^A-Za-z0-9.=,-]+", "_", name).lstrip(".") or "_"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context whose value is the path of a temporary file; at its end, that file replaces `path`.

    The file is synced to the disk first. If the context ends with an exception, for example because the disk
    is full, `path` stays as it was. Temporary files that interrupted writes of `path` have left are removed.
    """
    make_folder(path.parent)
    remove_parts(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as part:
            with suppress(OSError):  # without locks `remove_parts` removes nothing
                lock(part, wait=True)
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_parts(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that interrupted writes by `replacing` have left in a folder.

    A temporary file that a process is writing is locked and stays. On a file system without locks, all stay.

    Args:
        folder: folder of the temporary files; its subfolders are not searched.
        name: name of the file that was to be replaced; any by default.
    """
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[a-z0-9_]{{8}}\.part")
    for part in folder.glob(".*.part"):
        if pattern.fullmatch(part.name):
            with suppress(OSError), part.open("r+b") as file:
                if lock(file):
                    part.unlink()


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and sync their entries to the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed or the process ends.

    Args:
        file: open for writing.
        wait: wait until no other process holds the lock.

    Returns:
        Whether this process holds the lock now; False if another process does.

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


def warn_once(topic: str, message: str) -> None:
    """Issue a StorageWarning, unless this process has issued one with the same topic."""
    if topic not in _WARNED:
        _WARNED.add(topic)
        warnings.warn(message, StorageWarning, stacklevel=3)


def whole(array: Any) -> NumpyArray:
    """Copy an array of JAX to NumPy. If it is sharded over several processes, all of them must call this."""
    if getattr(array, "is_fully_addressable", True) or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def sync(path: Path) -> None:
    """Sync a file, or a folder's entries, to the disk; warn if the file system does not support this."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        folder = path.is_dir()  # a folder that may be written to but not listed cannot be opened
        if error.errno not in _UNSUPPORTED and not (folder and error.errno == errno.EACCES):
            raise
        kind = "folders" if folder else "files"
        warn_once(
            f"sync {kind}",
            f"{kind} cannot be synced to the disk ({path}: {error.strerror}): after a power failure the "
            "last checkpoints may be missing or damaged.",
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file, or replace it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, or replace it."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        InputError: the file cannot be read or is not valid; the message names it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(min(os.fstat(file.fileno()).st_size, LARGEST_JSON) + 1)  # allocates this size
        if len(text) > LARGEST_JSON:
            raise ValueError(f"it has more than {LARGEST_JSON:,} bytes")
        return parse_json(text)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None


def parse_json(text: bytes) -> Any:
    """Content of a JSON text in UTF-8; NaN and infinities are accepted, as by Python.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or contains an integer with too many digits or
            half of a surrogate pair. Python parses some of these, but cannot print or write them again.
    """
    decoded = text.decode()
    try:
        content = json.loads(decoded, parse_int=_integer if _MANY_DIGITS.search(decoded) else None)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if decoded.count("[") + decoded.count("{") > DEEPEST_JSON or "\\u" in decoded:
        _check_content(content)
    return content


_MANY_DIGITS = re.compile(f"[0-9]{{{LONGEST_INTEGER}}}")
_TOO_DEEP = f"it is nested more than {DEEPEST_JSON} levels deep"


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"it has an integer of {len(text)} digits, more than {LONGEST_INTEGER}")
    return int(text)


def _check_content(content: Any) -> None:
    """Raise a ValueError for JSON that is nested too deeply or has half of a surrogate pair in a string."""
    level = [content]
    for _ in range(DEEPEST_JSON):
        for value in level:
            if isinstance(value, str):
                value.encode()  # raises a ValueError for half of a surrogate pair
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value if isinstance(value, list) else (*value, *value.values()))
        ]
    if level:
        raise ValueError(_TOO_DEEP)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from a JSON text is a number that is finite in single precision."""
    return isinstance(value, int | float) and abs(value) <= LARGEST


def write_tensors(path: Path, arrays: Mapping[str, NumpyArray], description: Any) -> None:
    """Write a safetensors file, or replace it.

    Arrays are written a few rows at a time, so that an array that is mapped from another file need not fit in
    memory.

    Args:
        path: the file.
        arrays: named arrays.
        description: stored as JSON in the file's header.

    Raises:
        InputError: the header would be too large to be read again.
    """
    header: dict[str, Any] = {"__metadata__": {"ppga": json.dumps(description)}}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # aligns all arrays
    end = 0
    for name in names:
        values = arrays[name]
        start, end = end, end + math.prod(values.shape) * values.dtype.itemsize
        kind = _KINDS[values.dtype.newbyteorder("=").str[1:]]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_JSON:
        raise InputError(
            f"{path} would need a header of {len(text):,} bytes; at most {LARGEST_JSON:,} can be read again."
        )
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for part in parts(arrays[name]):
                file.write(np.ascontiguousarray(part).data)


def read_tensors(path: Path, mapped: bool = False) -> tuple[dict[str, NumpyArray], Any]:
    """Arrays and description of a file by `write_tensors`.

    Args:
        path: the file.
        mapped: map the arrays into memory, read-only, instead of loading them.

    Raises:
        InputError: the file cannot be read or is not valid; the message names it.
    """
    try:
        with path.open("rb") as file:  # only once, because the file can be replaced at any time
            arrays, metadata = _read(file, mapped)
        description = parse_json(metadata["ppga"].encode()) if "ppga" in metadata else None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}.") from None
    except MemoryError:
        raise InputError(f"cannot read {path}: its arrays need more memory than this machine has.") from None
    if "ppga" not in metadata:
        raise InputError(
            f"{path} was not written by ppga: its header has no description. Give a run's folder, or an "
            "archive that ppga has saved."
        )
    return arrays, description


_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems that do not support syncing; all other errors are failures of the disk."""
_WARNED = set[str]()


def like(values: Any) -> ArraySpec:
    """Type and shape of an array of NumPy or JAX."""
    return values.dtype, values.shape


def finite_rows(arrays: Iterable[Any]) -> NumpyArray:
    """Which (n,) rows of all arrays (n, ...) are finite."""
    finite = [np.isfinite(values).reshape(len(values), -1).all(axis=1) for values in map(np.asarray, arrays)]
    return np.asarray(np.all(finite, axis=0))


def check_arrays(arrays: Mapping[str, NumpyArray], expected: Mapping[str, ArraySpec]) -> None:
    """Raise an InputError unless the arrays have exactly the expected names, types and shapes."""
    for name in sorted(arrays.keys() ^ expected.keys()):
        raise InputError(f"the array {name!r} is {'missing' if name in expected else 'not expected'}.")
    for name, (dtype, shape) in expected.items():
        values = arrays[name]
        if like(values) != (dtype, shape):
            raise InputError(f"the array {name!r} is {values.dtype}{values.shape}, expected {dtype}{shape}.")


_KINDS = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64",
    "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL",
}  # fmt: skip
"""Names of NumPy's types in safetensors files."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_PART = 2**24
"""Bytes that are written at a time."""


def parts(values: NumpyArray) -> Iterator[NumpyArray]:
    """Yield an array in parts of about 16 MiB, each of one or more rows."""
    if not values.shape or not len(values):
        yield np.asarray(values).reshape(-1)
        return
    rows = max(1, _PART // max(1, math.prod(values.shape[1:]) * values.dtype.itemsize))
    for start in range(0, len(values), rows):
        yield np.asarray(values[start : start + rows])


def _read(file: BinaryIO, mapped: bool) -> tuple[dict[str, NumpyArray], dict[str, str]]:
    """Arrays and metadata of a safetensors file; raises a ValueError if it is not valid."""
    length = int.from_bytes(file.read(8), "little")
    begin = 8 + length
    size = os.fstat(file.fileno()).st_size - begin
    if size < 0:
        raise ValueError("it is truncated")
    if length > LARGEST_JSON:
        raise ValueError(f"its header has more than {LARGEST_JSON:,} bytes")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not strings")
    layout = {name: _array_layout(name, entry) for name, entry in header.items()}
    bounds = sorted((start, end) for _, _, start, end in layout.values())
    if [0, *(end for _, end in bounds)] != [*(start for start, _ in bounds), size]:
        raise ValueError("its arrays overlap, leave gaps, or end before or after the file")
    if mapped:
        data = np.memmap(file, np.uint8, "r", begin, (size,)) if size else np.zeros(0, np.uint8)
        return {
            name: data[start:end].view(kind).reshape(shape)
            for name, (kind, shape, start, end) in layout.items()
        }, metadata
    arrays = {}
    for name, (kind, shape, start, _) in layout.items():
        file.seek(begin + start)
        arrays[name] = np.fromfile(file, kind, math.prod(shape)).reshape(shape)
    return arrays, metadata


def _array_layout(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Type, shape, first byte and end of an array, from its entry in a header.

    Raises:
        ValueError: the entry is not valid.
    """
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} in its header is not an array")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _NAMES:
        raise ValueError(f"{name!r} has type {kind!r}; possible: {', '.join(_NAMES)}")
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
