"""Runs that are told to stop, in processes of their own: also when nobody reads what they print."""

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

from conftest import lines

PATIENCE = 120.0
"""Seconds after which a process counts as hanging."""
APART = 1.0
"""Seconds between two signals that are not to count as one."""
SPHERE = (
    "train", "sphere", "--search.branches", "8", "--search.sigma0", "5", "--search.walk-updates", "1",
    "--keeping.checkpoint-seconds", "0", "--keeping.no-tensorboard", "--iterations", "1000000",
)  # fmt: skip
NEEDS_LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@dataclass
class Started:
    """A process that trains, and how the readers of its output end."""

    process: subprocess.Popen[str]
    run: Path
    break_output: Callable[[], None] = lambda: None


def wait_until(what: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, f"it has ended with {process.returncode}"
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.02)


def newest(run: Path) -> int:
    """Iteration of the newest finished checkpoint; 0 for none."""
    return max((int(file.stem) for file in (run / "checkpoints").glob("0*.json")), default=0)


def ended_well(started: Started, number: signal.Signals) -> None:
    """The process ends as documented after its iteration, which is in the metrics, checkpoint and archive."""
    assert started.process.wait(PATIENCE) == 128 + number
    checkpoint = checkpoints.newest(started.run / "checkpoints", pytest.fail)
    assert checkpoint is not None
    last = lines(started.run)[-1]
    assert checkpoint.iteration == last["iteration"]
    archive = ppga.load_archive(started.run)
    assert len(archive) == last["elites"]
    assert archive.description["iteration"] == last["iteration"]


# Whoever reads its output is gone.


def on_pipe(words: list[str], run: Path) -> Started:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    return Started(process, run, process.stdout.close)


TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def on_terminal(words: list[str], run: Path) -> Started:
    """On a terminal of its own, which is read until it is closed."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *words],
        stdin=theirs, stdout=theirs, stderr=theirs, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    closing = threading.Event()

    def read() -> None:
        while not closing.is_set():
            if select.select([ours], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # of a terminal without a process
                    os.read(ours, 100_000)
        os.close(ours)

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
    """One for each kind of output, all begun at the same time."""
    folder = tmp_path_factory.mktemp("outputs")
    runs = {
        kind: begin([sys.executable, "-m", "ppga", *SPHERE, "--output", str(folder / kind)], folder / kind)
        for kind, (begin, _) in OUTPUTS.items()
    }
    yield runs
    for one in runs.values():
        one.process.kill()
        one.process.wait()
        one.break_output()


@NEEDS_LINUX
@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_signal_ends_the_iteration_though_nobody_reads_the_output(
    kind: str, started: dict[str, Started]
) -> None:
    one, number = started[kind], OUTPUTS[kind][1]
    wait_until(lambda: newest(one.run) > 0, one.process)
    one.break_output()
    if kind == "closed":
        descriptors = [os.readlink(f"/proc/{one.process.pid}/fd/{number}") for number in range(3)]
        assert descriptors == [os.devnull] * 3, "no file of the run has the number of an output"
    if kind != "terminal":  # which sends SIGHUP when it is closed
        before = newest(one.run)
        wait_until(lambda: newest(one.run) > before + 2, one.process)
        one.process.send_signal(number)
    ended_well(one, number)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirection", "told"),
    [
        (">/dev/full", "ppga: the rest of the output is lost: No space left on device\n"),
        ("| true", ""),
        (">&-", ""),
        (">/dev/full 2>/dev/full", ""),
        (">&- 2>&-", ""),
    ],
)
def test_output_that_cannot_be_written_does_not_change_the_exit_code(redirection: str, told: str) -> None:
    script = f'"$@" {redirection}; exit "${{PIPESTATUS[0]}}"'
    words = ["bash", "-c", script, "bash", sys.executable, "-m", "ppga", "--help"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, told)


def test_a_terminal_that_hangs_up_does_not_end_a_run_under_nohup(tmp_path: Path) -> None:
    """SIGHUP stays ignored; of two signals at the same time, the second one does not end it at once."""
    run = tmp_path / "run"
    words = ["nohup", sys.executable, "-m", "ppga", *SPHERE, "--output", str(run)]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)
    one = Started(process, run)
    wait_until(lambda: newest(run) > 0, process)
    process.send_signal(signal.SIGHUP)
    before = newest(run)
    wait_until(lambda: newest(run) > before + 2, process)
    process.send_signal(signal.SIGSTOP)  # so that it gets both at once, as from systemd and `timeout`
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    ended_well(one, signal.SIGINT)  # the system delivers the lower number first


# In the middle of compiled code.

FILE = Path(__file__).with_name("waiting.py")
SMALL = (
    "train", f"{FILE}:Waiting", "--preset", "smoke", "--search.branches", "20", "--simulation.threads", "2",
    "--keeping.checkpoint-seconds", "0", "--keeping.no-tensorboard", "--iterations", "1000000",
)  # fmt: skip
COMMAND = (sys.executable, "-m", "ppga", *SMALL)
IN_PYTHON = """
import os, sys
from dataclasses import replace
import ppga
from waiting import Waiting
config, _ = ppga.preset("smoke", "slider", "map-elites")
keeping = ppga.KeepingConfig(checkpoint_seconds=0.0, tensorboard=False)
config = replace(config, search=replace(config.search, branches=20), keeping=keeping)
task = Waiting(episode_length=20, threads=2)
try:
    ppga.train(task, config, budget=ppga.Budget(iterations=10**6), output=sys.argv[1])
except KeyboardInterrupt:
    os._exit(77)
"""


SYSTEM = "map-elites:keeping.checkpoint-seconds=0,keeping.tensorboard=false"
STUDY = (
    sys.executable, "-m", "ppga", "study", "--tasks", f"{FILE}:Waiting", "--preset", "smoke",
    "--algorithms", SYSTEM, "--minutes", "60", "--episodes", "0", "--output",
)  # fmt: skip


@dataclass
class Waits:
    """A process that trains, in a folder of its own, and waits in compiled code when it is told to."""

    folder: Path
    words: tuple[str, ...]
    waits: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir()
        output, self.errors = self.folder / "run", self.folder / "errors"
        self.run = output / "waiting" / f"{plain_name(SYSTEM)}-0" if self.words is STUDY else output
        if self.waits:
            (self.folder / "wait").touch()
        environment = os.environ | {
            "PPGA_WAIT": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(FILE.parent), *filter(None, sys.path)]),
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*self.words, str(output)],
                stdout=errors, stderr=errors, text=True, env=environment, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        (self.folder / "wait").touch()
        wait_until((self.folder / "waits").exists, self.process)

    def send(self, number: signal.Signals) -> None:
        """As a terminal does, to all processes that belong together."""
        os.killpg(self.process.pid, number)

    def said(self, text: str) -> bool:
        return text in self.errors.read_text()


WAITING: dict[str, tuple[tuple[str, ...], bool]] = {
    "Ctrl-C": ((*COMMAND, "--algorithm", "map-elites", "--output"), False),
    "another signal": ((*COMMAND, "--algorithm", "map-elites", "--output"), False),
    "from Python": ((sys.executable, "-c", IN_PYTHON), False),
    "a study": (STUDY, False),
    "at the beginning": ((*COMMAND, "--output"), True),
}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Waits]]:
    """All begun at the same time."""
    folder = tmp_path_factory.mktemp("waiting")
    runs = {name: Waits(folder / name, *how) for name, how in WAITING.items()}
    yield runs
    for one in runs.values():
        with contextlib.suppress(ProcessLookupError):
            one.send(signal.SIGKILL)
        one.process.wait()


@pytest.mark.parametrize(
    ("name", "patient", "code", "told"),
    [
        ("Ctrl-C", [signal.SIGINT], 130, "ppga: stopped at once; ppga train --resume RUN goes on"),
        ("another signal", [signal.SIGTERM, signal.SIGTERM, signal.SIGHUP], 130, "ppga: stopped at once"),
        ("a study", [signal.SIGINT], 130, "stopped; the same command goes on with the study"),
        ("from Python", [signal.SIGINT], 77, ""),
    ],
)
def test_a_second_ctrl_c_does_not_wait_for_episodes(
    name: str, patient: list[signal.Signals], code: int, told: str, waiting: dict[str, Waits]
) -> None:
    """Other signals do: each process of a job may get one, and pass it on."""
    one = waiting[name]
    wait_until(lambda: newest(one.run) > 1, one.process)
    one.wait()
    for number in patient:
        one.send(number)
        wait_until(lambda: one.said("finishing this iteration"), one.process)
        time.sleep(APART)
        assert one.process.poll() is None, "it waits for the iteration"
    one.send(signal.SIGINT)
    assert one.process.wait(PATIENCE) == code
    assert not one.said("Traceback")
    assert one.said(told)
    checkpoint = checkpoints.newest(one.run / "checkpoints", pytest.fail)
    assert checkpoint is not None
    assert checkpoint.iteration == lines(one.run)[-1]["iteration"]


def test_the_first_signal_does_not_wait_for_what_comes_before_the_first_iteration(
    waiting: dict[str, Waits],
) -> None:
    one = waiting["at the beginning"]
    one.wait()
    assert (one.run / "config.json").exists()
    one.send(signal.SIGINT)
    assert one.process.wait(PATIENCE) == 130
    assert one.said("stopped at once")
    assert not one.said("Traceback")
    assert newest(one.run) == 0
