"""Nothing is lost: runs that are killed, or whose disk fails, end as if nothing had happened.

Briefly here; `make fuzz` goes on for long (PPGA_FAULTS is the number of faults of each kind).
"""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ppga
from ppga import InputError
from ppga.algorithms.sphere import Sphere
from ppga.runs import Budget
from ppga.runs.folder import RunFolder

from conftest import lines, same_runs

FAULTS = int(os.environ.get("PPGA_FAULTS", "12"))
CONFIG = replace(
    ppga.preset("smoke", "sphere")[0],
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(checkpoint_seconds=0.0, tensorboard=False, snapshot_iterations=1),
)
ITERATIONS = 5
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class PowerFailure(BaseException):
    """Nothing more happens after it."""


class Disk:
    """What a run does to files goes through it, and at a given moment it fails.

    If the power fails, what was not synced is lost, or a part of it, and whatever the program would still do
    does not happen. Otherwise every change fails from then on, with an error of the system.
    """

    def __init__(self, folder: Path, fails_at: int, error: int | None, dice: random.Random) -> None:
        self.folder, self.fails_at, self.error, self.dice = str(folder), fails_at, error, dice
        self.changes = 0
        # bytes of each file that are safe, by its number: all that were there before
        about = [file.stat() for file in folder.rglob("*") if file.is_file()]
        self.synced = {one.st_ino: one.st_size for one in about}

    def change(self, path: Any) -> None:
        if not str(os.fspath(path)).startswith(self.folder):
            return
        self.changes += 1
        if self.changes == self.fails_at and self.error is None:
            self._lose()
        if self.changes >= self.fails_at:
            raise PowerFailure if self.error is None else OSError(self.error, os.strerror(self.error))

    def sync(self, file: int) -> None:
        self.change(os.readlink(f"/proc/self/fd/{file}"))
        about = os.fstat(file)
        self.synced[about.st_ino] = about.st_size

    def _lose(self) -> None:
        for file in Path(self.folder).rglob("*"):
            about = file.stat()
            safe = self.synced.get(about.st_ino, 0)
            if file.is_file() and about.st_size > safe:
                os.truncate(file, self.dice.randint(safe, about.st_size))


_DISKS: list[Disk] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _DISKS:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes | os.PathLike) and flags & CHANGES:
            _DISKS[-1].change(path)
    if event in ("os.rename", "os.remove", "os.mkdir"):
        _DISKS[-1].change(arguments[0])
        gone = {"os.rename": 1, "os.remove": 0}.get(event)
        if gone is not None and os.path.exists(arguments[gone]):  # its number will be another file's
            _DISKS[-1].synced.pop(os.stat(arguments[gone]).st_ino, None)


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
@pytest.mark.parametrize("error", [None, errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_at_any_moment_costs_nothing(
    whole: tuple[Path, int], error: int | None, tmp_path: Path
) -> None:
    undisturbed, changes = whole
    dice = random.Random(error or 0)
    for number in range(FAULTS):
        run = tmp_path / f"{number}"
        for _ in range(2):  # and once more while it goes on
            told = what_happens(Disk(run, dice.randint(1, changes), error, dice), run)
            expected = "the power failed" if error is None else os.strerror(error)
            assert told is None or expected in told
        go_on(run)
        same_runs(undisturbed, run)


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
