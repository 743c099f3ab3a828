"""Optional output, that is the display, TensorBoard and heatmaps, fails without ending a run."""

import contextlib
import os
import shutil
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event, SessionLog

import ppga
from ppga import Budget, Iteration
from ppga.problems import Sphere
from ppga.runs.display import Display, Lines, Picture
from ppga.runs.folder import RunFolder, read_lines
from ppga.runs.loggers import scalars
from ppga.runs.writer import Writer

from helpers.runs import SPHERE, Messages, same_runs

WITH_TENSORBOARD = SPHERE.replace(**{"log.tensorboard": True})
PATIENCE = 120.0
"""Seconds after which a run counts as hanging."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    ppga.train("sphere", SPHERE, budget=Budget(iterations=20), output=run)
    return run


# The display.


def closed_terminal() -> int:
    """Descriptor of a terminal whose other end is closed."""
    controller, terminal = os.openpty()
    os.close(controller)
    return terminal


def closed_pipe() -> int:
    """Descriptor of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("broken", [closed_terminal, closed_pipe, None])
def test_a_display_that_fails_is_switched_off(
    live: bool, broken: Callable[[], int] | None, undisturbed: Path, tmp_path: Path
) -> None:
    """Its file's descriptor is replaced in the middle of the run, or the file is closed."""
    file = open(tmp_path / "output", "w")  # noqa: SIM115
    console = Console(file=file, force_terminal=live, width=100)
    display: Display = Picture(console) if live else Lines(console)

    def break_output(iteration: Iteration) -> None:
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
            "sphere",
            SPHERE,
            budget=Budget(iterations=20),
            output=run,
            callbacks=[break_output],
            display=display,
        )
    assert len(warned) == 1
    same_runs(undisturbed, run)
    with contextlib.suppress(OSError):
        file.close()


# TensorBoard.


def events(run: Path) -> Iterator[Any]:
    """Events that TensorBoard would read, file by file."""
    for file in sorted((run / "tensorboard").iterdir()):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_tensorboard_gets_every_number_of_every_iteration(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", WITH_TENSORBOARD, budget=Budget(iterations=3), output=run)
    time.sleep(1.0)  # names of its files count seconds
    ppga.resume(run, budget=Budget(iterations=5))
    written = list(events(run))
    points = [{value.tag: value.simple_value for value in event.summary.value} for event in written]
    expected = [scalars(line) for line in read_lines(run / "metrics.jsonl")]
    assert [event.step for event in written if event.summary.value] == [1, 2, 3, 4, 5]
    for point, numbers in zip(filter(None, points), expected, strict=True):
        assert point == pytest.approx(numbers, nan_ok=True)
    starts = [event.step for event in written if event.session_log.status == SessionLog.START]
    assert starts == [4], "TensorBoard hides what follows the checkpoint"
    assert all(event.file_version == "brain.Event:2" for event in (written[0], written[4]))


def in_time(train: Callable[[], Any]) -> None:
    """Train in a thread, and fail if it hangs."""
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_tensorboard_on_a_full_disk_is_switched_off(undisturbed: Path, tmp_path: Path) -> None:
    run, display = tmp_path / "run", Messages()

    def fill(iteration: Iteration) -> None:
        """Put its file on a full device, also where it is open already."""
        if iteration.record["iteration"] == 3:
            (file,) = (run / "tensorboard").iterdir()
            full = os.open("/dev/full", os.O_WRONLY)
            for descriptor in Path("/proc/self/fd").iterdir():
                if descriptor.exists() and descriptor.samefile(file):
                    os.dup2(full, int(descriptor.name))
            os.close(full)
            file.unlink()
            file.symlink_to("/dev/full")

    in_time(
        lambda: ppga.train(
            "sphere",
            WITH_TENSORBOARD,
            budget=Budget(iterations=20),
            output=run,
            callbacks=[fill],
            display=display,
        )
    )
    assert [line for line in display.lines if "TensorBoard" in line] == [
        "warning: TensorBoard is switched off, the run continues without it: No space left on device"
    ]
    same_runs(undisturbed, run)


def test_tensorboard_without_a_folder_is_switched_off(undisturbed: Path, tmp_path: Path) -> None:
    run, display = tmp_path / "run", Messages()
    ppga.train("sphere", WITH_TENSORBOARD, budget=Budget(iterations=1), output=run)
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").write_text("a file")
    ppga.resume(run, budget=Budget(iterations=20), display=display)
    assert [line.split(":")[1] for line in display.lines if "TensorBoard" in line] == [
        " TensorBoard is switched off, the run continues without it"
    ]
    same_runs(undisturbed, run)


# Heatmaps.


def test_a_heatmap_that_fails_is_reported_and_the_run_continues(undisturbed: Path, tmp_path: Path) -> None:
    run, display = tmp_path / "run", Messages()

    def block(_: Iteration) -> None:
        (run / "heatmap.png").mkdir(exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ppga.runs.writer.HEATMAP_SECONDS", 0.0)
        ppga.train(
            "sphere", SPHERE, budget=Budget(iterations=20), output=run, callbacks=[block], display=display
        )
    (warning,) = [line for line in display.lines if "heatmap.png" in line]
    assert warning.startswith("warning: heatmap.png could not be drawn: IsADirectoryError")
    same_runs(undisturbed, run)


def test_a_heatmap_is_drawn_without_a_copy_of_the_solutions(tmp_path: Path) -> None:
    size, peaks = 200_000, list[int]()
    config = SPHERE.replace(**{"log.checkpoint_seconds": 1e9})

    def draw(iteration: Iteration) -> None:
        if not iteration.stop:
            return
        writer = Writer(RunFolder(tmp_path), "sphere", config, Budget(), iteration.algorithm, pytest.fail)
        tracemalloc.start()
        writer._draw()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    problem = Sphere(solution_size=size)
    archive = ppga.train(problem, config, budget=Budget(iterations=20), callbacks=[draw]).archive
    assert (tmp_path / "heatmap.png").exists()
    assert peaks[0] < 4 * size * len(archive)
