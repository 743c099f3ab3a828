"""Experience kept for learning off policy: a ring of rows, in a file beside the checkpoints or in memory.

The file is written in order and never copied. It has more room than the ring remembers, so that what a
checkpoint remembers is still there when the run is resumed from it; when that room runs out, a checkpoint is
due.
"""

import shutil
from pathlib import Path

import numpy as np

from ppga import machine
from ppga.errors import InputError, at_least_one
from ppga.storage import NumpyArray

NAME = "replay.bin"
KEPT_CHECKPOINTS = 3
"""As many as a run keeps: from each one must be able to go on."""
LARGEST_SHARE = 0.9
"""Of what is free, that the rows may take."""
HEAD = 512
"""Bytes before the first row: how many were ever written."""


class Replay:
    """The last `capacity` rows that were added.

    Args:
        capacity: rows remembered.
        shape: of a row, float32.
        burst: rows that one iteration adds, at most.
    """

    def __init__(self, capacity: int, shape: tuple[int, ...], burst: int) -> None:
        self.capacity = at_least_one("the replay buffer's capacity", capacity)
        self.shape = shape
        # between two checkpoints at most: a third of the room, or one iteration
        self.stride = max(-(-capacity // (2 * KEPT_CHECKPOINTS)), 2 * burst)
        self.room = capacity + KEPT_CHECKPOINTS * self.stride
        self.burst = burst
        self.written = self.saved = 0
        self._rows: NumpyArray | None = None
        self._head: NumpyArray | None = None
        self.path: Path | None = None

    @property
    def bytes(self) -> int:
        """What all rows take."""
        return HEAD + 4 * self.room * int(np.prod(self.shape))

    def __len__(self) -> int:
        """Rows remembered now."""
        return min(self.written, self.capacity)

    def open(self, folder: Path | None) -> None:
        """Begin, in a file of this folder, or in memory without one.

        A file must fit into memory too: rows are read at random, and a disk would take forever.

        Raises:
            InputError: it will not fit.
        """
        self._check(machine.free_memory(), "memory")
        if folder is None:
            self._rows = np.zeros((self.room, *self.shape), np.float32)
            return
        self.path = folder / NAME
        if not self.path.exists():
            self._check(shutil.disk_usage(folder).free, f"disk, {folder}")
            with self.path.open("wb") as file:
                file.truncate(self.bytes)  # a hole, filled as rows come
        elif self.path.stat().st_size != self.bytes:
            raise InputError(f"{self.path} has {self.path.stat().st_size} bytes, expected {self.bytes}.")
        self._head = np.memmap(self.path, np.int64, "r+", 0, (1,))
        self._rows = np.memmap(self.path, np.float32, "r+", HEAD, (self.room, *self.shape))

    def _check(self, free: int, where: str) -> None:
        if self.bytes > LARGEST_SHARE * free:
            fits = int((LARGEST_SHARE * free - HEAD) / (self.bytes - HEAD) * self.capacity)
            raise InputError(
                f"a replay buffer of {self.capacity:,} transitions takes {self.bytes / 2**30:.2f} GiB, and "
                f"{free / 2**30:.2f} GiB are free ({where}). At most {max(fits, 0):,} would fit: "
                "--td3.buffer, --sac.buffer."
            )

    def add(self, rows: NumpyArray) -> None:
        """Remember rows (n, ...), in order; the oldest are forgotten."""
        store = self._store()
        rows = rows[-self.capacity :]
        if self._head is not None:
            self._head[0] = self.written + len(rows)  # before the rows: what follows may be half written
        first = self.written % self.room
        fit = min(len(rows), self.room - first)
        store[first : first + fit] = rows[:fit]
        store[: len(rows) - fit] = rows[fit:]
        self.written += len(rows)

    def sample(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NumpyArray:
        """Rows (*shape, ...) drawn evenly, with replacement, of those remembered."""
        return np.asarray(self._store()[self.places(draws, shape)])

    def places(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NumpyArray:
        """Where (*shape) rows drawn evenly are."""
        if not len(self):
            raise InputError("the replay buffer is empty.")
        ages = draws.integers(1, len(self) + 1, shape)
        return np.asarray((self.written - ages) % self.room)

    def at(self, places: NumpyArray, *columns: NumpyArray) -> NumpyArray:
        """Rows at places, or parts of them: as NumPy's indices."""
        return np.asarray(self._store()[(places, *columns)])

    @property
    def due(self) -> bool:
        """Whether a checkpoint must be written now: one more iteration could overwrite what one remembers."""
        return self.path is not None and self.written + self.burst > self.saved + self.stride

    def state(self) -> NumpyArray:
        """How many rows were ever written; with the file, which is on the disk then, enough to go on."""
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        if isinstance(self._head, np.memmap):
            self._head.flush()
        self.saved = self.written
        return np.array(self.written, np.int64)

    def load_state(self, state: NumpyArray) -> None:
        """Go on from a `state()`.

        Raises:
            InputError: the file does not hold what was remembered then.
        """
        written = int(state)
        reached = written if self._head is None else int(self._head[0])
        if self._head is None and written:
            raise InputError("experience is kept in a run's folder only; this run has none.")
        if reached < written or reached - written > self.room - self.capacity:
            raise InputError(
                f"{self.path} does not hold the experience of that checkpoint: {written:,} rows were written "
                f"then, {reached:,} since."
            )
        self.written = self.saved = written

    def _store(self) -> NumpyArray:
        if self._rows is None:
            raise RuntimeError("the replay buffer was not opened")
        return self._rows
