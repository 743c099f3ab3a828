"""Nothing is lost: runs that are killed, or whose disk fails, end as if nothing had happened.

Briefly here; `make fuzz` goes on for long (PPGA_FAULTS is the number of faults of each kind).
"""

import errno
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.algorithms.sphere import Sphere
from ppga.learners.replay import Replay
from ppga.runs import Budget
from ppga.runs.folder import RunFolder
from ppga.runs.loop import Writer
from ppga.storage import NumpyArray

from conftest import lines, same_runs

FAULTS = int(os.environ.get("PPGA_FAULTS", "12"))
CONFIG = replace(
    ppga.preset("smoke", "sphere")[0],
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(checkpoint_seconds=0.0, snapshot_iterations=1),
)
ITERATIONS = 5
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SECTOR = 512
"""Bytes that a disk writes at once."""


class PowerFailure(BaseException):
    """Nothing more happens after it."""


class Disk:
    """What a run does to files goes through it, and at a given moment it fails.

    If the power fails, nothing that the program would still do happens, and what was not synced is partly
    lost. Of a file, each sector that was written since it was synced is there, or as it was before; where
    nothing was before, it may be zeros or anything else, or missing at the end. Of a folder, the last things
    that happened to an entry since the folder was synced, any number of them, are undone: a file or folder
    that was made vanishes, what was renamed has its old name, and what was removed is there again.

    Otherwise every change fails from then on, with an error of the system.
    """

    def __init__(self, folder: Path, fails_at: int, error: int | None, dice: random.Random) -> None:
        self.folder, self.fails_at, self.error, self.dice = str(folder), fails_at, error, dice
        self.changes, self.losing = 0, False
        # what is safe of each file, by its number: all that was there before
        self.synced = {
            os.stat(file).st_ino: file.read_bytes() for file in folder.rglob("*") if file.is_file()
        }
        # what would undo all that has happened to each entry of each folder since it was synced
        self.undo: defaultdict[str, defaultdict[str, list[Callable[[], object]]]]
        self.undo = defaultdict(lambda: defaultdict(list))

    def change(self, path: str) -> bool:
        """Count a change, if it is one of this folder; whether it is."""
        if self.losing or not path.startswith(self.folder):
            return False
        self.changes += 1
        if self.changes == self.fails_at and self.error is None:
            self.losing = True
            self._lose()
            self.losing = False
        if self.changes >= self.fails_at:
            raise PowerFailure if self.error is None else OSError(self.error, os.strerror(self.error))
        return True

    def sync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        self.change(path)
        if os.path.isdir(path):
            self.undo.pop(path, None)
        else:
            self.synced[os.fstat(file).st_ino] = Path(path).read_bytes()

    def made(self, path: str) -> None:
        """A file or a folder is about to be made."""

        def undo() -> None:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

        self._entry(path).append(undo)

    def removed(self, path: str) -> None:
        """A file is about to be removed."""
        content = self._forget(path)
        self._entry(path).append(lambda: Path(path).write_bytes(content))

    def renamed(self, path: str, new: str) -> None:
        """A file is about to be renamed, within its folder."""
        replaced = self._forget(new) if os.path.exists(new) else None

        def undo() -> None:
            os.rename(new, path)
            if replaced is not None:
                Path(new).write_bytes(replaced)

        # the two names are one entry's from now on
        self._entry(new).extend([*self._entry(path), undo])
        self._entry(path).clear()

    def _entry(self, path: str) -> list[Callable[[], object]]:
        folder, name = os.path.split(path)
        return self.undo[folder][name]

    def _forget(self, path: str) -> bytes:
        """What is safe of a file that goes; its number will be another file's."""
        return self.synced.pop(os.stat(path).st_ino, b"")

    def _lose(self) -> None:
        for file in Path(self.folder).rglob("*"):
            if file.is_file():
                old, new = self.synced.get(os.stat(file).st_ino, b""), file.read_bytes()
                if old != new:
                    file.write_bytes(self._torn(old, new))
        for folder in sorted(self.undo, reverse=True):  # those that are in others first
            for undo in self.undo[folder].values():
                for back in reversed(undo[self.dice.randint(0, len(undo)) :]):
                    back()

    def _torn(self, old: bytes, new: bytes) -> bytes:
        """What may be left of a file, of which the old content was synced."""
        left = b""
        for start in range(0, max(len(old), len(new)), SECTOR):
            before, after = old[start : start + SECTOR], new[start : start + SECTOR]
            size = max(len(before), len(after))
            added = self.dice.choice((after.ljust(size, b"\0"), bytes(size), self.dice.randbytes(size)))
            kept = self.dice.choice((before, after))[: len(before)]
            left += kept + added[len(kept) :]
        return left[: self.dice.randint(*sorted((len(old), len(new))))]


_DISKS: list[Disk] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    kinds = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")
    if not _DISKS or event not in kinds or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    disk, path = _DISKS[-1], os.path.abspath(os.fsdecode(arguments[0]))
    if event == "open":
        flags = arguments[2]
        if flags & CHANGES and disk.change(path) and flags & os.O_CREAT and not os.path.exists(path):
            disk.made(path)
    elif event == "os.mkdir":
        if disk.change(path) and not os.path.exists(path):
            disk.made(path)
    elif event == "os.remove":
        if disk.change(path) and os.path.exists(path):
            disk.removed(path)
    elif event == "os.rename":
        if disk.change(path):
            disk.renamed(path, os.path.abspath(os.fsdecode(arguments[1])))
    else:
        disk.change(path)


sys.addaudithook(_hook)


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: disk.sync(file))
        _DISKS.append(disk)
        try:
            yield
        finally:
            _DISKS.pop()


def go_on(run: Path) -> None:
    """Begin, or go on."""
    if (run / "config.json").exists():
        ppga.resume(run, task=sphere())
    else:
        ppga.train(sphere(), CONFIG, budget=Budget(iterations=ITERATIONS), output=run)


def sphere() -> Sphere:
    return Sphere(CONFIG.search)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An undisturbed run, and how often it changes something on the disk."""
    run = tmp_path_factory.mktemp("whole") / "run"
    disk = Disk(run, 10**9, None, random.Random(0))
    with failing(disk):
        go_on(run)
    assert disk.changes > 20 * ITERATIONS
    assert len(disk.synced) >= 9, "three checkpoints, and what is beside them"
    return run, disk.changes


def what_happens(disk: Disk, run: Path) -> str | None:
    """What is told of a run on a disk that may fail."""
    with failing(disk):
        try:
            go_on(run)
        except PowerFailure:
            return "the power failed"
        except InputError as told:
            return str(told)
    return None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("error", "every"), [(None, 1), (None, 2), (errno.ENOSPC, 1), (errno.EROFS, 1), (errno.EIO, 1)]
)
def test_a_disk_that_fails_at_any_moment_costs_nothing(
    whole: tuple[Path, int], error: int | None, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint every few iterations."""
    undisturbed, changes = whole
    monkeypatch.setattr(Writer, "due", lambda writer: writer.algorithm.iteration % every == 0)
    dice = random.Random((error or 0) + every)
    for number in range(FAULTS):
        run = tmp_path / f"{number}"
        for _ in range(2):  # and once more while it goes on
            told = what_happens(Disk(run, dice.randint(1, changes), error, dice), run)
            expected = "the power failed" if error is None else os.strerror(error)
            assert told is None or expected in told
        go_on(run)
        same_runs(undisturbed, run)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_replay_buffer_survives_a_power_failure_at_any_moment(tmp_path: Path) -> None:
    """Whatever the newest checkpoint on the disk remembers is in its file."""

    def rows(first: int, count: int) -> NumpyArray:
        return np.arange(first, first + count, dtype=np.float32)[:, None] * np.ones(100, np.float32)

    dice = random.Random(2)
    for number in range(4 * FAULTS):
        folder, written = tmp_path / f"{number}", 0
        folder.mkdir()
        replay = Replay(30, (100,), 10)
        state = replay.written
        with failing(Disk(folder, dice.randint(1, 60), None, dice)), suppress(PowerFailure):
            replay.open(folder)
            while True:
                if replay.due:
                    state = int(replay.state())
                replay.add(rows(written, 7))
                written += 7
        again = Replay(30, (100,), 10)
        again.open(folder)
        if state:
            again.load_state(np.array(state))
            kept = again.at(np.arange(state - len(again), state) % again.room)
            np.testing.assert_array_equal(kept, rows(state - len(again), len(again)))


def test_a_checkpoint_cut_anywhere_is_left_out_and_told(whole: tuple[Path, int], tmp_path: Path) -> None:
    dice = random.Random(1)
    for number in range(FAULTS):
        run, said = tmp_path / f"{number}", Listening()
        ppga.train(sphere(), CONFIG, budget=Budget(iterations=ITERATIONS - 1), output=run)
        newest = max((run / "checkpoints").glob("*.safetensors"))
        content = bytearray(newest.read_bytes())
        if number % 2:
            newest.write_bytes(content[: dice.randrange(len(content))])
        else:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            newest.write_bytes(content)
        ppga.resume(run, budget=Budget(iterations=ITERATIONS), task=sphere(), display=said)
        assert any(f"checkpoint {ITERATIONS - 1} is damaged and was left out" in line for line in said.lines)
        same_runs(whole[0], run)


class Listening(ppga.runs.display.Silent):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def killed(folder: Path, task: str, times: int) -> Path:
    """A run that was killed so often, by a signal nobody can catch; as one that was not. By `killing.py`."""
    script = Path(__file__).with_name("killing.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), task, str(times)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"killed {times} times" in done.stdout
    same_runs(folder / "whole", folder / "run")
    return folder / "whole"


def test_killed_at_any_moment_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    killed(tmp_path, "sphere", (FAULTS + 1) // 2)


def test_a_killed_run_of_a_robot_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Real physics, real learning, tiny; and it has taken as many steps as it says."""
    whole = killed(tmp_path, "halfcheetah", 3)
    _, config, _ = RunFolder(whole).read()
    metrics = lines(whole)[-1]
    rollout = config.ppo.environments * config.ppo.rollout_length
    confirmed = metrics["evaluations"] - 20 * 5  # by two episodes, the others by one
    assert confirmed > 0
    assert metrics["episodes"] == 20 * 5 + 2 * confirmed
    walks = sum("walk_kl" in line for line in lines(whole))
    judged = metrics["env_steps"] - rollout * (1 + 20 + walks)
    assert judged == metrics["episodes"] * config.simulation.episode_length, "no halfcheetah falls"
