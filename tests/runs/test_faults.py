"""Nothing is lost: runs that are killed, or whose disk fails, end as if nothing had happened.

PPGA_FAULTS is the number of faults of each kind; `make fuzz` tests many more than the default.
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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppga
from ppga import Budget, InputError, PPGAConfig
from ppga.learners.replay import Replay
from ppga.runs.folder import RunFolder
from ppga.runs.writer import Writer
from ppga.storage import NumpyArray

from helpers.commands import environment
from helpers.runs import SPHERE, Messages, lines, same_runs

FAULTS = int(os.environ.get("PPGA_FAULTS", "12"))
CONFIG = SPHERE.replace(**{"log.tensorboard": True})
ITERATIONS = 5
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SECTOR = 512
"""Bytes that a disk writes atomically."""


class PowerFailure(BaseException):
    """Nothing more happens after it."""


class Disk:
    """A disk that sees every change of a run's files, and fails at one of them.

    After a power failure, nothing more that the program does has an effect, and changes that were not synced
    are partly lost. Each sector of a file that was written since its last sync is written or as before; where
    there was no sector before, it may be zeros, any other bytes, or missing at the end. Of the changes to an
    entry of a folder since the folder's last sync, the last ones, any number of them, are undone: a created
    file or folder vanishes, a renamed one has its old name, and a removed file is there again.

    Without a power failure, every change from then on raises an error of the operating system.

    Args:
        folder: folder of the run; changes elsewhere are ignored.
        fails_at: number of the change at which the disk fails.
        error: errno of the errors; None for a power failure.
        rng: decides what is lost.
    """

    def __init__(self, folder: Path, fails_at: int, error: int | None, rng: random.Random) -> None:
        self.folder, self.fails_at, self.error, self.rng = str(folder), fails_at, error, rng
        self.changes, self.losing = 0, False
        # synced content of each file, by its inode: everything that existed before
        self.synced = {
            os.stat(file).st_ino: file.read_bytes() for file in folder.rglob("*") if file.is_file()
        }
        # functions that undo the changes of each entry of each folder since it was synced
        self.undo: defaultdict[str, defaultdict[str, list[Callable[[], object]]]]
        self.undo = defaultdict(lambda: defaultdict(list))

    def change(self, path: str) -> bool:
        """Count a change if it is in the folder, and return whether it is."""
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

    def on_create(self, path: str) -> None:
        """A file or a folder is about to be created."""

        def undo() -> None:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

        self._entry(path).append(undo)

    def on_remove(self, path: str) -> None:
        """A file is about to be removed."""
        content = self._forget(path)
        self._entry(path).append(lambda: Path(path).write_bytes(content))

    def on_rename(self, path: str, new: str) -> None:
        """A file is about to be renamed, within its folder."""
        replaced = self._forget(new) if os.path.exists(new) else None

        def undo() -> None:
            os.rename(new, path)
            if replaced is not None:
                Path(new).write_bytes(replaced)

        # both names belong to one entry from now on
        self._entry(new).extend([*self._entry(path), undo])
        self._entry(path).clear()

    def _entry(self, path: str) -> list[Callable[[], object]]:
        folder, name = os.path.split(path)
        return self.undo[folder][name]

    def _forget(self, path: str) -> bytes:
        """Synced content of a file that vanishes; its inode may become another file's."""
        return self.synced.pop(os.stat(path).st_ino, b"")

    def _lose(self) -> None:
        for file in Path(self.folder).rglob("*"):
            if file.is_file():
                old, new = self.synced.get(os.stat(file).st_ino, b""), file.read_bytes()
                if old != new:
                    file.write_bytes(self._torn(old, new))
        for folder in sorted(self.undo, reverse=True):  # inner folders first
            for undo in self.undo[folder].values():
                for back in reversed(undo[self.rng.randint(0, len(undo)) :]):
                    back()

    def _torn(self, old: bytes, new: bytes) -> bytes:
        """A possible content, after a power failure, of a file whose old content was synced."""
        remains = b""
        for start in range(0, max(len(old), len(new)), SECTOR):
            before, after = old[start : start + SECTOR], new[start : start + SECTOR]
            size = max(len(before), len(after))
            added = self.rng.choice((after.ljust(size, b"\0"), bytes(size), self.rng.randbytes(size)))
            kept = self.rng.choice((before, after))[: len(before)]
            remains += kept + added[len(kept) :]
        return remains[: self.rng.randint(*sorted((len(old), len(new))))]


_DISKS: list[Disk] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    kinds = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")
    if not _DISKS or event not in kinds or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    disk, path = _DISKS[-1], os.path.abspath(os.fsdecode(arguments[0]))
    if event == "open":
        flags = arguments[2]
        if flags & CHANGES and disk.change(path) and flags & os.O_CREAT and not os.path.exists(path):
            disk.on_create(path)
    elif event == "os.mkdir":
        if disk.change(path) and not os.path.exists(path):
            disk.on_create(path)
    elif event == "os.remove":
        if disk.change(path) and os.path.exists(path):
            disk.on_remove(path)
    elif event == "os.rename":
        if disk.change(path):
            disk.on_rename(path, os.path.abspath(os.fsdecode(arguments[1])))
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


def train_or_resume(run: Path) -> None:
    if (run / "config.json").exists():
        ppga.resume(run)
    else:
        ppga.train("sphere", CONFIG, budget=Budget(iterations=ITERATIONS), output=run)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An undisturbed run, and its number of changes on the disk."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    disk = Disk(run, 10**9, None, random.Random(0))
    with failing(disk):
        train_or_resume(run)
    assert disk.changes > 20 * ITERATIONS
    assert len(disk.synced) >= 9, "three checkpoints of two files each, and other files"
    return run, disk.changes


def failure(disk: Disk, run: Path) -> str | None:
    """Train or resume on a disk that may fail; the failure, or None if there was none."""
    with failing(disk):
        try:
            train_or_resume(run)
        except PowerFailure:
            return "the power failed"
        except InputError as error:
            return str(error)
    return None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("error", "every"), [(None, 1), (None, 2), (errno.ENOSPC, 1), (errno.EROFS, 1), (errno.EIO, 1)]
)
def test_a_disk_that_fails_at_any_moment_costs_nothing(
    undisturbed: tuple[Path, int],
    error: int | None,
    every: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a checkpoint in every iteration or in every second one."""
    reference, changes = undisturbed
    monkeypatch.setattr(Writer, "checkpoint_due", lambda writer: writer.algorithm.iteration % every == 0)
    rng = random.Random((error or 0) + every)
    for number in range(FAULTS):
        run = tmp_path / f"{number}"
        for _ in range(2):  # and once more while it resumes
            message = failure(Disk(run, rng.randint(1, changes), error, rng), run)
            expected = "the power failed" if error is None else os.strerror(error)
            assert message is None or expected in message
        train_or_resume(run)
        same_runs(reference, run)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_replay_buffer_survives_a_power_failure_at_any_moment(tmp_path: Path) -> None:
    """The rows that the newest checkpoint on the disk needs are in the buffer's file."""

    def rows(first: int, count: int) -> NumpyArray:
        return np.arange(first, first + count, dtype=np.float32)[:, None] * np.ones(100, np.float32)

    rng = random.Random(2)
    for number in range(4 * FAULTS):
        folder, written = tmp_path / f"{number}", 0
        folder.mkdir()
        replay = Replay(30, (100,), 10)
        state = replay.written
        with failing(Disk(folder, rng.randint(1, 60), None, rng)), suppress(PowerFailure):
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


def test_a_checkpoint_that_is_damaged_anywhere_is_left_out_and_reported(
    undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    rng = random.Random(1)
    for number in range(FAULTS):
        run, display = tmp_path / f"{number}", Messages()
        ppga.train("sphere", CONFIG, budget=Budget(iterations=ITERATIONS - 1), output=run)
        newest = max((run / "checkpoints").glob("*.safetensors"))
        content = bytearray(newest.read_bytes())
        if number % 2:
            newest.write_bytes(content[: rng.randrange(len(content))])
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            newest.write_bytes(content)
        ppga.resume(run, budget=Budget(iterations=ITERATIONS), display=display)
        message = f"checkpoint {ITERATIONS - 1} is damaged and was left out"
        assert any(message in line for line in display.lines)
        same_runs(undisturbed[0], run)


def killed(folder: Path, task: str, times: int) -> Path:
    """Compare a run that SIGKILL ended that many times with an undisturbed one, which is returned."""
    done = subprocess.run(
        [sys.executable, "-m", "helpers.killing", str(folder), task, str(times)],
        capture_output=True, text=True, check=False,
        env=environment(JAX_COMPILATION_CACHE_DIR=str(folder / "compiled")),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"killed {times} times" in done.stdout
    same_runs(folder / "undisturbed", folder / "run")
    return folder / "undisturbed"


def test_a_run_that_is_killed_at_any_moment_ends_as_if_undisturbed(tmp_path: Path) -> None:
    killed(tmp_path, "sphere", (FAULTS + 1) // 2)


def test_a_killed_run_of_a_robot_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Real physics and learning in a tiny run; and it has taken as many steps as it says."""
    run = killed(tmp_path, "halfcheetah", 3)
    _, config, _ = RunFolder(run).read()
    assert isinstance(config, PPGAConfig)
    assert config.simulation.episode_length is not None
    metrics = lines(run)[-1]
    rollout = config.ppo.environments * config.ppo.rollout_length
    confirmed = metrics["evaluations"] - 20 * 5  # by two episodes; first evaluations have one
    assert confirmed > 0
    assert metrics["episodes"] == 20 * 5 + 2 * confirmed
    walks = sum("walk_kl" in line for line in lines(run))
    evaluated = metrics["env_steps"] - rollout * (1 + 20 + walks)
    assert evaluated == metrics["episodes"] * config.simulation.episode_length, "no halfcheetah falls"
