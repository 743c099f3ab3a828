"""A worker without simulations, for tests of the pool. Ray's workers import it, so it imports little."""

import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np


class PoolWorker:
    """Its methods are kinds of jobs. A marker file shows that a job has been tried before."""

    def add(self, one: int, other: int) -> int:
        return one + other

    def raises(self, error: Exception) -> None:
        raise error

    def cores(self, _: Any) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def die(self, marker: Path) -> str:
        """Kill this process, the first time."""
        if first(marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    def hang(self, marker: Path) -> str:
        """Write the process id and never end, the first time."""
        if first(marker):
            marker.write_text(str(os.getpid()))
            time.sleep(3600)
        return "done"

    def lose_node(self, marker: Path, always: bool = False) -> str:
        """Kill the node, the first time or always; Ray then ends its workers."""
        if first(marker) or always:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        return "done"

    def large(self, _: Any) -> np.ndarray[Any, Any]:
        """More bytes than Ray sends with an answer: they stay on the node until they are fetched."""
        return np.ones(2**24, np.uint8)

    def take_memory(self, gibibytes: int) -> None:
        """Allocate that much, slowly enough for Ray to notice."""
        blocks = []
        for _ in range(gibibytes * 16):
            blocks.append(bytearray(b"x" * 2**26))
            time.sleep(0.05)
        time.sleep(60)


class Owner:
    """An actor that owns an object."""

    def own(self) -> list[Any]:
        return [importlib.import_module("ray").put(np.ones(2**20))]


def make() -> PoolWorker:
    return PoolWorker()


def make_unless(marker: Path) -> PoolWorker:
    """A worker; if the file exists, the process is killed."""
    if marker.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return PoolWorker()


def first(marker: Path) -> bool:
    """Whether this is the first call with this file, which is created."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
