"""Runs that signals stop, in processes of their own, also when nothing reads their output."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ppga
from ppga.runs import checkpoints
from ppga.storage import plain_name

from helpers.commands import HELPERS, environment
from helpers.runs import SPHERE as RUN
from helpers.runs import SPHERE_WORDS, lines

PATIENCE = 120.0
"""Seconds after which a process counts as hanging."""
APART = 1.0
"""Seconds between two signals, so that they do not count as one."""
SPHERE = (sys.executable, "-m", "ppga", *SPHERE_WORDS, "--iterations", "1000000")
NEEDS_LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@dataclass
class Started:
    """A process that trains.

    Attributes:
        process: the process.
        run: folder of the run.
        break_output: closes the other end of its output.
    """

    process: subprocess.Popen[str]
    run: Path
    break_output: Callable[[], None] = lambda: None


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, f"the process has ended with {process.returncode}"
        assert time.monotonic() < end, "the process hangs"
        time.sleep(0.02)


def newest(run: Path) -> int:
    """Iteration of the newest finished checkpoint; 0 for none."""
    return checkpoints.last_iteration(run / "checkpoints")


def check_end(started: Started, number: signal.Signals) -> None:
    """Check that the process ends after its iteration, which is in the metrics, checkpoint and archive."""
    assert started.process.wait(PATIENCE) == 128 + number
    checkpoint = checkpoints.newest(started.run / "checkpoints", pytest.fail)
    assert checkpoint is not None
    last = lines(started.run)[-1]
    assert checkpoint.iteration == last["iteration"]
    archive = ppga.load_archive(started.run)
    assert len(archive) == last["elites"]
    assert archive.description["iteration"] == last["iteration"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_iteration_and_the_output_says_how_to_resume(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    words = [*SPHERE, "--quiet", "--output", str(run)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: newest(run), process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert "finishing this iteration" in errors
    assert f"ppga train --resume {run}" in output
    check_end(Started(process, run), number)


@pytest.mark.parametrize(("iterations", "interrupted"), [(2, None), (3, signal.SIGINT)])
def test_a_run_whose_budget_is_used_up_was_not_stopped_early(
    iterations: int, interrupted: signal.Signals | None
) -> None:
    def send(iteration: ppga.Iteration) -> None:
        if iteration.record["iteration"] == 2:
            signal.raise_signal(signal.SIGINT)

    budget = ppga.Budget(iterations=iterations)
    outcome = ppga.train("sphere", RUN, budget=budget, callbacks=[send])
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2
    assert outcome.interrupted == interrupted


# Nothing reads the output.


def on_pipe(words: list[str], run: Path) -> Started:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    return Started(process, run, process.stdout.close)


TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
os.execv(sys.argv[1], sys.argv[1:])
"""


def on_terminal(words: list[str], run: Path) -> Started:
    """Start a process on a terminal of its own, which is read until it is closed."""
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *words],
        stdin=terminal, stdout=terminal, stderr=terminal, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    closing = threading.Event()

    def read() -> None:
        while not closing.is_set():
            if select.select([controller], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # a terminal without a process
                    os.read(controller, 100_000)
        os.close(controller)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def close() -> None:
        closing.set()
        reader.join()

    return Started(process, run, close)


def on_full_disk(words: list[str], run: Path) -> Started:
    with open("/dev/full", "w") as full:
        return Started(subprocess.Popen(words, stdout=full, stderr=full, text=True), run)


def closed(words: list[str], run: Path) -> Started:
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words]
    return Started(subprocess.Popen(shell, text=True), run)


OUTPUTS = {
    "pipe": (on_pipe, signal.SIGINT),
    "terminal": (on_terminal, signal.SIGHUP),
    "full": (on_full_disk, signal.SIGTERM),
    "closed": (closed, signal.SIGTERM),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """One process for each kind of output, all started at the same time."""
    folder = tmp_path_factory.mktemp("outputs")
    runs = {
        kind: start([*SPHERE, "--output", str(folder / kind)], folder / kind)
        for kind, (start, _) in OUTPUTS.items()
    }
    yield runs
    for run in runs.values():
        run.process.kill()
        run.process.wait()
        run.break_output()


@NEEDS_LINUX
@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_signal_ends_the_iteration_though_nothing_reads_the_output(
    kind: str, started: dict[str, Started]
) -> None:
    run, process = started[kind].run, started[kind].process
    wait_until(lambda: newest(run) > 0, process)
    started[kind].break_output()
    if kind == "closed":
        descriptors = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        assert descriptors == [os.devnull] * 3, "no file of the run has the descriptor of an output"
    number = OUTPUTS[kind][1]
    if kind != "terminal":  # a terminal sends SIGHUP when it is closed
        before = newest(run)
        wait_until(lambda: newest(run) > before + 2, process)
        process.send_signal(number)
    check_end(started[kind], number)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "ppga: the rest of the output is lost: No space left on device\n"),
        ("| true", ""),
        (">&-", ""),
        (">/dev/full 2>/dev/full", ""),
        (">&- 2>&-", ""),
    ],
)
def test_output_that_cannot_be_written_does_not_change_the_exit_code(redirection: str, message: str) -> None:
    script = f'"$@" {redirection}; exit "${{PIPESTATUS[0]}}"'
    words = ["bash", "-c", script, "bash", sys.executable, "-m", "ppga", "--help"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, message)


def test_a_terminal_that_hangs_up_does_not_end_a_run_under_nohup(tmp_path: Path) -> None:
    """SIGHUP stays ignored; of two signals at the same time, the second one does not end the run at once."""
    run = tmp_path / "run"
    words = ["nohup", *SPHERE, "--output", str(run)]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)
    wait_until(lambda: newest(run) > 0, process)
    process.send_signal(signal.SIGHUP)
    before = newest(run)
    wait_until(lambda: newest(run) > before + 2, process)
    process.send_signal(signal.SIGSTOP)  # both signals arrive at once, as from systemd and `timeout`
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    first = signal.Signals(process.wait(PATIENCE) - 128)  # the system delivers either of them first
    assert first in (signal.SIGINT, signal.SIGTERM)
    check_end(Started(process, run), first)


# In the middle of compiled code.

TASK = f"{HELPERS / 'waiting.py'}:Waiting"
COMMAND = (
    sys.executable, "-m", "ppga", "train", TASK, "--preset", "smoke", "--simulation.threads", "2",
    "--log.checkpoint-seconds", "0", "--log.no-tensorboard", "--iterations", "1000000",
)  # fmt: skip
MAP_ELITES = (*COMMAND, "--algorithm", "map-elites", "--batch-size", "20", "--output")
PPGA = (*COMMAND, "--branches", "20", "--output")
IN_PYTHON = """
import os, sys
import ppga
from helpers.waiting import Waiting
config, _ = ppga.preset("smoke", "slider", "map-elites")
log = ppga.LoggingConfig(checkpoint_seconds=0.0, tensorboard=False)
config = config.replace(batch_size=20, log=log)
task = Waiting(episode_length=20, threads=2)
try:
    ppga.train(task, config, budget=ppga.Budget(iterations=10**6), output=sys.argv[1])
except KeyboardInterrupt:
    os._exit(77)
"""


SYSTEM = "map-elites:log.checkpoint-seconds=0,log.tensorboard=false"
STUDY = (
    sys.executable, "-m", "ppga", "study", "--tasks", TASK, "--preset", "smoke",
    "--algorithms", SYSTEM, "--minutes", "60", "--episodes", "0", "--output",
)  # fmt: skip


@dataclass
class WaitingRun:
    """A process that trains, and waits in compiled code when it is asked to.

    Attributes:
        folder: a folder of its own.
        words: its command, without the output folder at the end.
        waits_at_start: whether it waits before its first iteration.
    """

    folder: Path
    words: tuple[str, ...]
    waits_at_start: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir()
        output, self.errors = self.folder / "run", self.folder / "errors"
        self.path = output / "waiting" / f"{plain_name(SYSTEM)}-0" if self.words is STUDY else output
        if self.waits_at_start:
            (self.folder / "wait").touch()
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*self.words, str(output)],
                stdout=errors, stderr=errors, text=True, start_new_session=True,
                env=environment(PPGA_WAIT=str(self.folder)),
            )  # fmt: skip

    def wait(self) -> None:
        (self.folder / "wait").touch()
        wait_until((self.folder / "waiting").exists, self.process)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def printed(self, text: str) -> bool:
        return text in self.errors.read_text()


WAITING: dict[str, tuple[tuple[str, ...], bool]] = {
    "Ctrl-C": (MAP_ELITES, False),
    "another signal": (MAP_ELITES, False),
    "from Python": ((sys.executable, "-c", IN_PYTHON), False),
    "a study": (STUDY, False),
    "at the start": (PPGA, True),
}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WaitingRun]]:
    """All started at the same time."""
    folder = tmp_path_factory.mktemp("waiting")
    runs = {name: WaitingRun(folder / name, *how) for name, how in WAITING.items()}
    yield runs
    for run in runs.values():
        with contextlib.suppress(ProcessLookupError):
            run.send(signal.SIGKILL)
        run.process.wait()


@pytest.mark.parametrize(
    ("name", "patient", "code", "message"),
    [
        ("Ctrl-C", [signal.SIGINT], 130, "ppga: stopped at once; ppga train --resume RUN continues"),
        ("another signal", [signal.SIGTERM, signal.SIGTERM, signal.SIGHUP], 130, "ppga: stopped at once"),
        ("a study", [signal.SIGINT], 130, "stopped; the same command resumes the study"),
        ("from Python", [signal.SIGINT], 77, ""),
    ],
)
def test_a_second_ctrl_c_does_not_wait_for_episodes(
    name: str, patient: list[signal.Signals], code: int, message: str, waiting: dict[str, WaitingRun]
) -> None:
    """After other signals it does: each process of a job may get one, and pass it on."""
    run = waiting[name]
    wait_until(lambda: newest(run.path) > 1, run.process)
    run.wait()
    for number in patient:
        run.send(number)
        wait_until(lambda: run.printed("finishing this iteration"), run.process)
        time.sleep(APART)
        assert run.process.poll() is None, "the process waits for the iteration"
    run.send(signal.SIGINT)
    assert run.process.wait(PATIENCE) == code
    assert not run.printed("Traceback")
    assert run.printed(message)
    checkpoint = checkpoints.newest(run.path / "checkpoints", pytest.fail)
    assert checkpoint is not None
    assert checkpoint.iteration == lines(run.path)[-1]["iteration"]


def test_a_signal_before_the_first_iteration_ends_the_process_at_once(
    waiting: dict[str, WaitingRun],
) -> None:
    run = waiting["at the start"]
    run.wait()
    assert (run.path / "config.json").exists()
    run.send(signal.SIGINT)
    assert run.process.wait(PATIENCE) == 130
    assert run.printed("stopped at once")
    assert not run.printed("Traceback")
    assert newest(run.path) == 0
