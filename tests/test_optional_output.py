"""What a run can do without, its display, TensorBoard and pictures, fails without ending it."""

import contextlib
import os
import shutil
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog

import ppga
from ppga import Budget, Iteration
from ppga.algorithms.sphere import Sphere
from ppga.runs.display import Display, Lines, Picture
from ppga.runs.folder import RunFolder, read_lines
from ppga.runs.loggers import scalars
from ppga.runs.loop import Writer

from conftest import same_runs

CONFIG = replace(
    ppga.preset("smoke", "sphere")[0],
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(checkpoint_seconds=0, snapshot_iterations=1),
)
QUIET = replace(CONFIG, keeping=replace(CONFIG.keeping, tensorboard=False))
PATIENCE = 120.0
"""Seconds after which a run counts as hanging."""


class Listening(ppga.runs.display.Silent):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    ppga.train("sphere", QUIET, budget=Budget(iterations=20), output=run)
    return run


# The display.


def closed_terminal() -> int:
    """A terminal that nobody looks at any more."""
    ours, theirs = os.openpty()
    os.close(ours)
    return theirs


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("broken", [closed_terminal, closed_pipe, None])
def test_a_display_that_fails_is_switched_off(
    live: bool, broken: Callable[[], int] | None, undisturbed: Path, tmp_path: Path
) -> None:
    """The descriptor of its file is replaced in mid-run; in the third case, the file is closed."""
    file = open(tmp_path / "output", "w")  # noqa: SIM115
    console = Console(file=file, force_terminal=live, width=100)
    display: Display = Picture(console) if live else Lines(console)

    def spoil(iteration: Iteration) -> None:
        if iteration.record["iteration"] != 3:
            return
        if broken is None:
            file.close()
        else:
            descriptor = broken()
            os.dup2(descriptor, file.fileno())
            os.close(descriptor)

    run = tmp_path / "run"
    with (
        open(os.devnull, "w") as null,
        contextlib.redirect_stdout(null),  # which rich closes when another pipe is broken
        pytest.warns(RuntimeWarning, match="the display failed and is switched off") as warned,
    ):
        ppga.train(
            "sphere", QUIET, budget=Budget(iterations=20), output=run, callbacks=[spoil], display=display
        )
    assert len(warned) == 1
    same_runs(undisturbed, run)
    with contextlib.suppress(OSError):
        file.close()


# TensorBoard.


def events(run: Path) -> Iterator[Any]:
    """What TensorBoard would read, file by file."""
    for file in sorted((run / "tensorboard").iterdir()):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_tensorboard_gets_every_number_of_every_iteration(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=3), output=run)
    time.sleep(1.0)  # names of its files count seconds
    ppga.resume(run, budget=Budget(iterations=5))
    found = list(events(run))
    points = [{value.tag: value.simple_value for value in event.summary.value} for event in found]
    expected = [scalars(line) for line in read_lines(run / "metrics.jsonl")]
    assert [event.step for event in found if event.summary.value] == [1, 2, 3, 4, 5]
    for there, wanted in zip(filter(None, points), expected, strict=True):
        assert there == pytest.approx(wanted, nan_ok=True)
    starts = [event.step for event in found if event.session_log.status == SessionLog.START]
    assert starts == [4], "what follows the checkpoint is hidden"
    assert all(event.file_version == "brain.Event:2" for event in (found[0], found[4]))


def in_time(train: Callable[[], Any]) -> None:
    """Train in a thread, which may hang."""
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_tensorboard_on_a_full_disk_is_switched_off(undisturbed: Path, tmp_path: Path) -> None:
    run, said = tmp_path / "run", Listening()

    def fill(iteration: Iteration) -> None:
        """Its file is on a full device from here on, also where it is open already."""
        if iteration.record["iteration"] == 3:
            (file,) = (run / "tensorboard").iterdir()
            full = os.open("/dev/full", os.O_WRONLY)
            for one in Path("/proc/self/fd").iterdir():
                if one.exists() and one.samefile(file):
                    os.dup2(full, int(one.name))
            os.close(full)
            file.unlink()
            file.symlink_to("/dev/full")

    in_time(
        lambda: ppga.train(
            "sphere", CONFIG, budget=Budget(iterations=20), output=run, callbacks=[fill], display=said
        )
    )
    assert [line for line in said.lines if "TensorBoard" in line] == [
        "warning: TensorBoard is switched off, the run goes on without it: No space left on device"
    ]
    same_runs(undisturbed, run)


def test_tensorboard_without_a_folder_is_switched_off(undisturbed: Path, tmp_path: Path) -> None:
    run, said = tmp_path / "run", Listening()
    ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=run)
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").write_text("a file")
    ppga.resume(run, budget=Budget(iterations=20), display=said)
    assert [line.split(":")[1] for line in said.lines if "TensorBoard" in line] == [
        " TensorBoard is switched off, the run goes on without it"
    ]
    same_runs(undisturbed, run)


# Pictures.


def test_a_picture_that_fails_is_told_and_the_run_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    run, said = tmp_path / "run", Listening()

    def in_the_way(_: Iteration) -> None:
        (run / "heatmap.png").mkdir(exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ppga.runs.loop.PICTURE_SECONDS", 0.0)
        ppga.train(
            "sphere", QUIET, budget=Budget(iterations=20), output=run, callbacks=[in_the_way], display=said
        )
    (warning,) = [line for line in said.lines if "heatmap.png" in line]
    assert warning.startswith("warning: heatmap.png could not be drawn: IsADirectoryError")
    same_runs(undisturbed, run)


def test_a_picture_is_drawn_without_a_copy_of_the_solutions(tmp_path: Path) -> None:
    size, peaks = 200_000, list[int]()
    config = replace(QUIET, keeping=replace(QUIET.keeping, checkpoint_seconds=1e9))

    def draw(iteration: Iteration) -> None:
        if not iteration.stop:
            return
        writer = Writer(RunFolder(tmp_path), "sphere", config, Budget(), iteration.algorithm, pytest.fail)
        tracemalloc.start()
        writer._draw()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    problem = Sphere(CONFIG.search, solution_size=size)
    archive = ppga.train(problem, config, budget=Budget(iterations=20), callbacks=[draw]).archive
    assert (tmp_path / "heatmap.png").exists()
    assert peaks[0] < 4 * size * len(archive)
