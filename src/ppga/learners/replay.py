"""The replay buffer of off-policy learners: a ring buffer, in a file beside the checkpoints or in memory.

The file is written in order and never copied. It has more rows than the buffer's capacity, so that all rows
that were in the buffer at a checkpoint are still in the file when the run is resumed from it. Before further
rows would overwrite them, a checkpoint is due.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ppga import machine
from ppga.errors import InputError, check_count
from ppga.storage import KEPT_CHECKPOINTS, NumpyArray, replacing, sync

NAME = "replay.bin"
LARGEST_SHARE = 0.9
"""Largest share of the free memory, and of the free disk space, that the rows may take."""
MAX_SAMPLE_SIZE = 2**22
"""Numbers that learners sample at a time, unless what belongs together has more."""
HEAD = 512
"""Bytes before the first row; they hold the number of rows written since the run began."""


def draws_of(key: Any) -> np.random.Generator:
    """NumPy's random generator seeded with a key of JAX."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def equal_share(total: int, most: int) -> int:
    """The largest share of `total` that is at most `most`, if all shares are equal; at least 1."""
    return next(share for share in range(max(1, min(total, most)), 0, -1) if total % share == 0)


@dataclass(frozen=True)
class ReplayConfig:
    """Settings that learners with a replay buffer share.

    Attributes:
        buffer_size: transitions in the replay buffer; the oldest ones are overwritten.
        fit_buffer: shrink a replay buffer that does not fit in memory or on the disk; an error otherwise.
    """

    buffer_size: int = 1_000_000
    fit_buffer: bool = False


class Replay:
    """A buffer that holds the last `capacity` rows that were added.

    Args:
        capacity: number of rows that the buffer holds.
        shape: shape of a row, float32.
        burst: largest number of rows that one iteration adds.

    Attributes:
        room: rows in the file (or in memory); more than the capacity.
        written: rows added since the run began.
        saved: value of `written` at the last checkpoint.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], burst: int) -> None:
        self.capacity = check_count("the replay buffer's capacity", capacity)
        self.shape = shape
        # at most so many rows between two checkpoints; the file has spare rows for all checkpoints of a run
        self.stride = max(-(-capacity // (2 * KEPT_CHECKPOINTS)), burst)
        self.room = capacity + KEPT_CHECKPOINTS * self.stride
        self.burst = burst
        self.written = self.saved = 0
        self._rows: NumpyArray | None = None
        self._path: Path | None = None

    @property
    def bytes(self) -> int:
        """Size of the file (or of the arrays in memory) in bytes."""
        return HEAD + 4 * self.room * int(np.prod(self.shape))

    def __len__(self) -> int:
        """Number of rows in the buffer."""
        return min(self.written, self.capacity)

    def check(self, folder: Path | None) -> None:
        """Raise an InputError if the buffer does not fit in memory or on the disk of the folder."""
        for where, free in self._free(folder).items():
            if self.bytes > LARGEST_SHARE * free:
                raise InputError(
                    f"a replay buffer of {self.capacity:,} transitions takes {self.bytes / 2**30:.2f} GiB, "
                    f"and {free / 2**30:.2f} GiB are free ({where}). At most {self.fits(folder):,} "
                    "would fit: set --td3.buffer-size or --sac.buffer-size."
                )

    def fits(self, folder: Path | None) -> int:
        """Largest capacity that fits in memory and on the disk of the folder."""
        free = min(self._free(folder).values())
        room = (LARGEST_SHARE * free - HEAD) / (4 * int(np.prod(self.shape)))
        return max(0, int(min((room - KEPT_CHECKPOINTS) / 1.5, room - KEPT_CHECKPOINTS * self.burst)))

    @staticmethod
    def _free(folder: Path | None) -> dict[str, int]:
        """Free bytes wherever the rows must fit, by the name of the place.

        A file must fit in memory too: rows are read in random order, which is too slow from a disk.
        """
        free = {"memory": machine.free_memory()}
        if folder is not None and not (folder / NAME).exists():
            existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
            free[f"disk, {existing}"] = shutil.disk_usage(existing).free
        return free

    def open(self, folder: Path | None) -> None:
        """Open the buffer's file in a folder, or create it; None keeps the rows in memory.

        Raises:
            InputError: the file has another size, because the run had other settings.
        """
        if folder is None:
            self._rows = np.zeros((self.room, *self.shape), np.float32)
            return
        path = folder / NAME
        if not path.exists():
            with replacing(path) as aside:
                os.truncate(aside, self.bytes)  # a sparse file, filled as rows are added
        if path.stat().st_size != self.bytes:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes, expected {self.bytes}: it is damaged, or of "
                "another replay buffer. Start a new run in another folder: --output."
            )
        self._path = path
        self._rows = np.memmap(path, np.float32, "r", HEAD, (self.room, *self.shape))

    def add(self, rows: NumpyArray) -> None:
        """Add rows (n, ...), in order; the oldest ones leave the buffer."""
        rows = np.ascontiguousarray(rows[-self.capacity :], np.float32)
        first = self.written % self.room
        fit = min(len(rows), self.room - first)
        if self._path is None:
            store = self._store()
            store[first : first + fit] = rows[:fit]
            store[: len(rows) - fit] = rows[fit:]
        else:  # not through the memory map, where a full disk would kill the process instead of raising
            with self._path.open("r+b") as file:
                # the number of rows first, because the rows may be written only in part
                file.write(np.array([self.written + len(rows)], np.int64).data)
                file.flush()
                file.seek(HEAD + first * 4 * int(np.prod(self.shape)))
                file.write(rows[:fit].data)
                file.seek(HEAD)
                file.write(rows[fit:].data)
        self.written += len(rows)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NumpyArray:
        """Rows (*shape, ...) drawn uniformly, with replacement, from the buffer."""
        return self.at(self.draw(rng, shape))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NumpyArray:
        """Numbers (*shape,) of rows of the buffer, drawn uniformly, with replacement; see `at`.

        Raises:
            InputError: the buffer is empty.
        """
        if not len(self):
            raise InputError("the replay buffer is empty.")
        ages = rng.integers(1, len(self) + 1, shape)
        return np.asarray(self.written - ages)

    def at(self, numbers: NumpyArray, *columns: NumpyArray) -> NumpyArray:
        """Rows of the buffer, copied.

        Args:
            numbers: (n, ...) numbers of rows, counted since the run began.
            *columns: indices along further axes, as in NumPy's indexing; complete rows without them.
        """
        return np.asarray(self._store()[(numbers % self.room, *columns)])

    @property
    def due(self) -> bool:
        """Whether a checkpoint must be written now: one more iteration could overwrite rows of the last."""
        return self._path is not None and self.written + self.burst > self.saved + self.stride

    def state(self) -> NumpyArray:
        """Number of rows written since the run began, for a checkpoint; syncs the file to the disk."""
        if self._path is not None:
            sync(self._path)
        self.saved = self.written
        return np.array(self.written, np.int64)

    def load_state(self, state: NumpyArray) -> None:
        """Restore a `state()`.

        Raises:
            InputError: the file does not hold the rows that were in the buffer then.
        """
        written = int(state)
        if self._path is None:
            raise InputError("a replay buffer can be restored in a run's folder only; this run has none.")
        reached = int(np.fromfile(self._path, np.int64, 1)[0])
        if written < 0 or reached < written or reached - written > self.room - self.capacity:
            raise InputError(
                f"{self._path} does not hold the experience of that checkpoint: {written:,} rows had been "
                f"written then, {reached:,} by now. Start a new run from its elites: --init-from."
            )
        self.written = self.saved = written

    def _store(self) -> NumpyArray:
        if self._rows is None:
            raise RuntimeError("the replay buffer was not opened")
        return self._rows
