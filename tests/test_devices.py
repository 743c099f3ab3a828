"""Learning on many devices and in several processes, in processes of their own: JAX counts devices once."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ppga

from conftest import command, lines

HERE = Path(__file__).parent
FILE = HERE / "slider.py"
SETTINGS = (
    "--preset", "smoke", "--cluster", "jax", "--simulation.episode-length", "20", "--ppo.environments", "24",
    "--ppo.rollout-length", "4", "--search.branches", "9", "--seed", "3",
)  # fmt: skip
tasks = pytest.mark.parametrize("task", ["glider", pytest.param("Slider", marks=pytest.mark.long)])
"""What is spread is any function of arrays; that of MJX takes long to compile."""


def with_devices(count: int) -> dict[str, str]:
    return os.environ | {"JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cpu"}


@tasks
def test_eight_devices(task: str) -> None:
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "eight_devices.py")]
    done = subprocess.run(
        tests, env=with_devices(8) | {"PPGA_SPREAD": task}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def train(task: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "ppga", "train", f"{FILE}:{task}", *words]


def begin(rank: int, port: int, task: str, *words: str) -> subprocess.Popen[str]:
    """One of two processes."""
    where = ("--address", f"127.0.0.1:{port}", "--workers", "2", "--rank", str(rank))
    return subprocess.Popen(
        train(task, *where, *words),
        env=with_devices(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@tasks
def test_two_processes_do_what_one_does_on_two_devices(task: str, tmp_path: Path) -> None:
    """A signal to either ends both, with a checkpoint to go on from."""
    port, run = free_port(), tmp_path / "run"
    settings = (*SETTINGS, "--simulation.physics", "mjx" if task == "Slider" else "mujoco")
    both = [
        begin(rank, port, task, *settings, "--iterations", "100000", "--output", str(folder))
        for rank, folder in enumerate((run, tmp_path / "other"))
    ]
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert all(process.poll() is None for process in both), [one.communicate() for one in both]
        time.sleep(0.05)
    both[1].send_signal(signal.SIGTERM)
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [128 + signal.SIGTERM, 0], told
    assert "2 devices, of 2 processes" in told[0]
    assert not (tmp_path / "other").exists(), "the first process writes"

    done, port = len(lines(run)), free_port()
    again = ("--resume", str(run), "--iterations", str(done + 1))
    both = [begin(rank, port, task, *again) for rank in (0, 1)]
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert [line["processes"] for line in lines(run)] == [2] * (done + 1)

    words = train(task, *settings, "--iterations", str(done + 1), "--output", str(tmp_path / "alone"))
    alone = subprocess.run(words, env=with_devices(2), capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    two, together = ppga.load_archive(run), ppga.load_archive(tmp_path / "alone")
    assert len(two) > 1
    assert sorted(two.elites["index"]) == sorted(together.elites["index"])
    for name in ("objective", "measures", "solution"):
        np.testing.assert_allclose(
            two.elites[name], together.elites[name], rtol=1e-3, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--address", "127.0.0.1:1"), "--workers, how many there are"),
        (("--address", "127.0.0.1:1", "--workers", "2", "--rank", "2"), "--rank counts the 2 workers from 0"),
        (("--address", "nowhere", "--workers", "2", "--rank", "0"), "HOST:PORT or auto, got 'nowhere'"),
    ],
)
def test_processes_that_cannot_meet_are_told(words: tuple[str, ...], message: str) -> None:
    told = command("train", f"{FILE}:glider", *SETTINGS, *words, "--iterations", "1")
    assert told.returncode == 2
    assert message in " ".join(told.stderr.split()), told.stderr
