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

from helpers.commands import command
from helpers.runs import lines

HELPERS = Path(__file__).parents[1] / "helpers"
FILE = HELPERS / "slider.py"
SETTINGS = (
    "--preset", "smoke", "--cluster", "jax", "--simulation.episode-length", "20", "--ppo.environments", "24",
    "--ppo.rollout-length", "4", "--branches", "9", "--seed", "3",
)  # fmt: skip
tasks = pytest.mark.parametrize("task", ["glider", pytest.param("Slider", marks=pytest.mark.long)])
"""A task of array functions; compiling one for MJX takes minutes."""


def with_devices(count: int) -> dict[str, str]:
    return os.environ | {"JAX_NUM_CPU_DEVICES": str(count), "JAX_PLATFORMS": "cpu"}


@tasks
def test_eight_devices(task: str) -> None:
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HELPERS / "eight_devices.py")]
    done = subprocess.run(
        tests, env=with_devices(8) | {"PPGA_DEVICES_TASK": task}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


def train(task: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "ppga", "train", f"{FILE}:{task}", *words]


def start(rank: int, port: int, task: str, *words: str) -> subprocess.Popen[str]:
    """Start one of two processes."""
    cluster = ("--address", f"127.0.0.1:{port}", "--workers", "2", "--rank", str(rank))
    return subprocess.Popen(
        train(task, *cluster, *words),
        env=with_devices(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@tasks
def test_two_processes_give_the_results_of_one_with_two_devices(task: str, tmp_path: Path) -> None:
    """A signal to either process ends both, with a checkpoint from which they can be resumed."""
    port, run = free_port(), tmp_path / "run"
    settings = (*SETTINGS, "--simulation.physics", "mjx" if task == "Slider" else "mujoco")
    processes = [
        start(rank, port, task, *settings, "--iterations", "100000", "--output", str(folder))
        for rank, folder in enumerate((run, tmp_path / "other"))
    ]
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        running = all(process.poll() is None for process in processes)
        assert running, [process.communicate() for process in processes]
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM, 0], outputs
    assert "2 devices, of 2 processes" in outputs[0]
    assert not (tmp_path / "other").exists(), "the first process writes"

    done, port = len(lines(run)), free_port()
    resume = ("--resume", str(run), "--iterations", str(done + 1))
    processes = [start(rank, port, task, *resume) for rank in (0, 1)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert [line["processes"] for line in lines(run)] == [2] * (done + 1)

    words = train(task, *settings, "--iterations", str(done + 1), "--output", str(tmp_path / "single"))
    single = subprocess.run(words, env=with_devices(2), capture_output=True, text=True, check=False)
    assert single.returncode == 0, single.stdout + single.stderr
    archive, expected = ppga.load_archive(run), ppga.load_archive(tmp_path / "single")
    assert len(archive) > 1
    assert sorted(archive.elites["index"]) == sorted(expected.elites["index"])
    for name in ("objective", "measures", "solution"):
        np.testing.assert_allclose(
            archive.elites[name], expected.elites[name], rtol=1e-3, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--address", "127.0.0.1:1"), "--workers, their number"),
        (("--address", "127.0.0.1:1", "--workers", "2", "--rank", "2"), "--rank counts the 2 workers from 0"),
        (("--address", "nowhere", "--workers", "2", "--rank", "0"), "HOST:PORT or auto, got 'nowhere'"),
    ],
)
def test_processes_that_cannot_connect_end_with_a_message(words: tuple[str, ...], message: str) -> None:
    done = command("train", f"{FILE}:glider", *SETTINGS, *words, "--iterations", "1")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split()), done.stderr
