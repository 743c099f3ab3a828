"""Learning on many devices and in several processes, in processes of their own: JAX counts devices once."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ppga

from conftest import lines

HERE = Path(__file__).parent
SLIDER = f"{HERE / 'slider.py'}:Slider"
SETTINGS = (
    "--preset", "smoke", "--cluster", "jax", "--simulation.physics", "mjx",
    "--simulation.episode-length", "20", "--ppo.environments", "24", "--ppo.rollout-length", "4",
    "--search.branches", "9", "--seed", "3",
)  # fmt: skip


@cache
def compiled() -> Path:
    """What these processes have compiled: many need the same."""
    return Path(tempfile.mkdtemp(prefix="ppga-compiled-"))


@pytest.fixture(scope="module", autouse=True)
def _tidy() -> Iterator[None]:
    yield
    shutil.rmtree(compiled())


def with_devices(count: int) -> dict[str, str]:
    return os.environ | {
        "JAX_NUM_CPU_DEVICES": str(count),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(compiled()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }


def test_eight_devices() -> None:
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "eight_devices.py")]
    done = subprocess.run(tests, env=with_devices(8), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def begin(rank: int, port: int, *words: str) -> subprocess.Popen[str]:
    """One of two processes."""
    where = ("--address", f"127.0.0.1:{port}", "--workers", "2", "--rank", str(rank))
    return subprocess.Popen(
        [sys.executable, "-m", "ppga", "train", SLIDER, *where, *words],
        env=with_devices(1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_two_processes_do_what_one_does_on_two_devices(tmp_path: Path) -> None:
    """A signal to either ends both, with a checkpoint to go on from."""
    port, run = free_port(), tmp_path / "run"
    both = [
        begin(rank, port, *SETTINGS, "--iterations", "100000", "--output", str(folder))
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
    both = [begin(rank, port, *again) for rank in (0, 1)]
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert [line["processes"] for line in lines(run)] == [2] * (done + 1)

    one = [sys.executable, "-m", "ppga", "train", SLIDER, *SETTINGS, "--iterations", str(done + 1)]
    alone = subprocess.run(
        [*one, "--output", str(tmp_path / "alone")], env=with_devices(2), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
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
    told = subprocess.run(
        [sys.executable, "-m", "ppga", "train", SLIDER, *SETTINGS, *words, "--iterations", "1"],
        env=with_devices(1), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert message in " ".join(told.stderr.split()), told.stderr
