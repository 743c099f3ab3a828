"""A worker as an actor of Ray, and what its node must have in common with the other nodes."""

import hashlib
import os
import pickle
import platform
import socket
import time
from collections.abc import Callable
from typing import Any

from ppga import machine
from ppga.distributed.pinning import pin
from ppga.errors import import_extra
from ppga.version import __version__

CORES = 1
"""Cores visible to a worker. XLA rounds differently with another number, so all workers have the same."""
VERSIONS = (
    "python", "ppga", "jax", "jaxlib", "mujoco", "numpy", "gymnasium", "ribs", "optax", "cpu",
)  # fmt: skip
"""Versions that results depend on, so that they must be the same on all nodes."""


def make_worker(build: bytes, task: str, config: dict[str, Any]) -> Any:
    """A worker of a run, on the worker's machine: JAX is imported here, and not with this module.

    Args:
        build: pickled function that makes the problem, see `Work`.
        task: a registered name or FILE.py:NAME.
        config: the run's config as JSON values.
    """
    from ppga.distributed.shares import Worker

    simulation = {**config["simulation"], "threads": CORES}
    return Worker(pickle.loads(build)(task, {**config, "simulation": simulation}))


class WorkerActor:
    """A worker as an actor of Ray."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.worker: Any = None

    def describe_node(self, task_file: str) -> tuple[str, str, dict[str, str], str]:
        """Id and name of the node, its `versions()`, and the SHA-256 of the task file there."""
        ray = import_extra("ray", "ray")
        node = ray.get_runtime_context().get_node_id()
        return node, socket.gethostname(), versions(), digest_of(task_file)

    def start(self) -> None:
        """Restrict the process to its own cores, before JAX counts them, and make the worker."""
        os.environ["JAX_PLATFORMS"] = "cpu"
        pin(CORES)
        self.worker = self.make()

    def pid(self) -> int:
        """Id of the process."""
        return os.getpid()

    def run(self, kind: str, *arguments: Any) -> tuple[Any, float]:
        """Result of one job, and the seconds it took."""
        start = time.perf_counter()
        return getattr(self.worker, kind)(*arguments), time.perf_counter() - start


def digest_of(file: str) -> str:
    """SHA-256 of a file's contents; empty if there is no such file."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Versions and processor of this machine, by the names in VERSIONS."""
    packages = {name: machine.version_of(name) for name in VERSIONS if name not in ("python", "ppga", "cpu")}
    return {
        "python": platform.python_version(),
        "ppga": __version__,
        **packages,
        "cpu": machine.cpu_model(),
    }
