"""Experience kept for learning off policy: a ring of rows, in a file beside the checkpoints or in memory.

The file is written in order and never copied. It has more room than the ring remembers, so that what a
checkpoint remembers is still there when the run is resumed from it; when that room runs out, a checkpoint is
due.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ppga import machine
from ppga.errors import InputError, at_least_one
from ppga.storage import KEPT_CHECKPOINTS, NumpyArray, replacing, sync

NAME = "replay.bin"
LARGEST_SHARE = 0.9
"""Of what is free, that the rows may take."""
HEAD = 512
"""Bytes before the first row: how many were ever written."""


def draws_of(key: Any) -> np.random.Generator:
    """NumPy's randomness from a key of JAX."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


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
        self._path: Path | None = None

    @property
    def bytes(self) -> int:
        """What all rows take."""
        return HEAD + 4 * self.room * int(np.prod(self.shape))

    def __len__(self) -> int:
        """Rows remembered now."""
        return min(self.written, self.capacity)

    def check(self, folder: Path | None) -> None:
        """Raise an InputError if there is not room enough, in the folder or in memory."""
        for where, free in self._free(folder).items():
            if self.bytes > LARGEST_SHARE * free:
                raise InputError(
                    f"a replay buffer of {self.capacity:,} transitions takes {self.bytes / 2**30:.2f} GiB, "
                    f"and {free / 2**30:.2f} GiB are free ({where}). At most {self.fits(folder):,} "
                    "would fit: --td3.buffer, --sac.buffer."
                )

    def fits(self, folder: Path | None) -> int:
        """How large the capacity could be, in the folder and in memory."""
        free = min(self._free(folder).values())
        room = (LARGEST_SHARE * free - HEAD) / (4 * int(np.prod(self.shape)))
        return max(0, int(min((room - KEPT_CHECKPOINTS) / 1.5, room - 2 * KEPT_CHECKPOINTS * self.burst)))

    @staticmethod
    def _free(folder: Path | None) -> dict[str, int]:
        """Where the rows must fit -> bytes that are free there.

        A file must fit into memory too: rows are read at random, and a disk would take forever.
        """
        rooms = {"memory": machine.free_memory()}
        if folder is not None and not (folder / NAME).exists():
            there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
            rooms[f"disk, {there}"] = shutil.disk_usage(there).free
        return rooms

    def open(self, folder: Path | None) -> None:
        """Begin, in a file of this folder, or in memory without one."""
        if folder is None:
            self._rows = np.zeros((self.room, *self.shape), np.float32)
            return
        path = folder / NAME
        if not path.exists():
            with replacing(path) as aside:
                os.truncate(aside, self.bytes)  # a hole, filled as rows come
        if path.stat().st_size != self.bytes:
            raise InputError(f"{path} has {path.stat().st_size} bytes, expected {self.bytes}.")
        self._path = path
        self._rows = np.memmap(path, np.float32, "r", HEAD, (self.room, *self.shape))

    def add(self, rows: NumpyArray) -> None:
        """Remember rows (n, ...), in order; the oldest are forgotten."""
        rows = np.ascontiguousarray(rows[-self.capacity :], np.float32)
        first = self.written % self.room
        fit = min(len(rows), self.room - first)
        if self._path is None:
            store = self._store()
            store[first : first + fit] = rows[:fit]
            store[: len(rows) - fit] = rows[fit:]
        else:  # not through memory, where a full disk would be the end of the process and not an error
            with self._path.open("r+b") as file:
                # first of all how far it goes: what follows may be half written
                file.write(np.array([self.written + len(rows)], np.int64).data)
                file.flush()
                file.seek(HEAD + first * 4 * int(np.prod(self.shape)))
                file.write(rows[:fit].data)
                file.seek(HEAD)
                file.write(rows[fit:].data)
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
        return self._path is not None and self.written + self.burst > self.saved + self.stride

    def state(self) -> NumpyArray:
        """How many rows were ever written; with the file, which is on the disk then, enough to go on."""
        if self._path is not None:
            sync(self._path)
        self.saved = self.written
        return np.array(self.written, np.int64)

    def load_state(self, state: NumpyArray) -> None:
        """Go on from a `state()`.

        Raises:
            InputError: the file does not hold what was remembered then.
        """
        written = int(state)
        if self._path is None:
            raise InputError("experience is kept in a run's folder only; this run has none.")
        reached = int(np.fromfile(self._path, np.int64, 1)[0])
        if written < 0 or reached < written or reached - written > self.room - self.capacity:
            raise InputError(
                f"{self._path} does not hold the experience of that checkpoint: {written:,} rows were "
                f"written then, {reached:,} by now."
            )
        self.written = self.saved = written

    def _store(self) -> NumpyArray:
        if self._rows is None:
            raise RuntimeError("the replay buffer was not opened")
        return self._rows
