"""A crew of Ray's workers: shares go to whoever is idle, and those who die are replaced."""

import os
import platform
import secrets
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ppga import machine
from ppga.errors import InputError, at_least_one, import_extra
from ppga.version import __version__

CORES = 1
"""Cores a worker sees. XLA rounds differently with another number, so all workers have the same."""
TRIES = 3
"""How often a share is computed again before it is taken to be what kills its workers."""
PATIENCE = 120.0
"""Seconds to wait for a worker to begin."""
SPENT = ("rounds", "bytes_moved", "crew_seconds", "busy_seconds")
"""What is told of a crew's work: calls, what went there and back, how long the learner waited for it, and how
long all workers together computed."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
MATTERS = ("python", "ppga", "jax", "jaxlib", "mujoco", "numpy", "cpu")
"""What must be the same everywhere for results to be."""


@dataclass(frozen=True)
class Cluster:
    """Where a run's workers are.

    Attributes:
        address: of a Ray cluster, HOST:PORT, or auto for the one this machine belongs to; None for one of
            its own, on this machine, for as long as the run takes. Of processes that share their devices,
            where the first one is; auto if SLURM or the like has begun them, None if there is one.
        workers: how many; one for each core of a Ray cluster by default.
        rank: which of the processes that share their devices this is, from 0.
    """

    address: str | None = None
    workers: int | None = None
    rank: int | None = None

    def check(self) -> None:
        """Raise an InputError for what cannot be."""
        if self.workers is not None:
            at_least_one("--workers", self.workers)
        if self.rank is not None and not 0 <= self.rank < (self.workers or 1):
            raise InputError(f"--rank counts the {self.workers or 1} workers from 0, got {self.rank}.")
        if self.address not in (None, "auto"):
            host, colon, port = str(self.address).rpartition(":")
            if not (colon and host and port.isdigit()):
                raise InputError(f"--address must be HOST:PORT or auto, got {self.address!r}.")


def about() -> dict[str, str]:
    """Versions and processor of this machine: what results may depend on."""
    versions = {name: machine.version_of(name) for name in MATTERS if name not in ("python", "ppga", "cpu")}
    return {
        "python": platform.python_version(),
        "ppga": __version__,
        **versions,
        "cpu": machine.cpu_model(),
    }


@contextmanager
def connected(cluster: Cluster, cores: int | None = None) -> Iterator[Any]:
    """Ray, connected to the cluster; by itself it starts one on this machine.

    Args:
        cluster: which.
        cores: that one of its own pretends to have.
    """
    cluster.check()
    prepare(cluster.address)
    ray = import_extra("ray", "ray")
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if ray.is_initialized():  # by whoever calls us from Python
        yield ray
        return
    if cluster.address is None:
        settings |= {"num_cpus": cores or machine.visible_cores(), "include_dashboard": False}
    else:
        _reach(cluster.address)
        settings["address"] = cluster.address
    try:
        with forking():
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(f"no Ray cluster at {cluster.address or 'this machine'}: {said}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def prepare(address: str | None) -> None:
    """Set what Ray reads from the environment when it is imported, unless it is set.

    Left to itself, Ray writes a token into the home folder for a cluster of its own, which a later
    `ray start` takes up, and whoever connects to that does not.
    """
    defaults = dict(QUIET)
    if "RAY_AUTH_MODE" not in os.environ:
        if address is None:
            defaults |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        elif (Path.home() / ".ray" / "auth_token").exists():
            defaults["RAY_AUTH_MODE"] = "token"
    os.environ.update({name: os.environ.get(name, value) for name, value in defaults.items()})


@contextmanager
def forking() -> Iterator[None]:
    """Let Ray fork to begin its processes, which JAX warns of: they become other programs at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        yield


def _reach(address: str) -> None:
    """Raise an InputError where no Ray cluster answers; Ray itself would try for many minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster at {address}: {error}. Begin one with: ray start --head --port {port}"
        ) from None
    # something listens; whether it is Ray is tried by a process that can be killed
    knock = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        subprocess.run(
            [sys.executable, "-c", knock, address], capture_output=True, timeout=PATIENCE / 2, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"what listens at {address} does not answer as a Ray cluster does.") from None


@contextmanager
def at_work(
    cluster: Cluster, task: str, settings: dict[str, Any], most: int, say: Callable[[str], None]
) -> Iterator["RayCrew"]:
    """A crew for a run, until it ends.

    Args:
        cluster: where.
        task: its name, or FILE.py:CLASS.
        settings: of the run, as JSON.
        most: shares of work; more workers than that would have nothing to do.
        say: tells the user.
    """
    cluster.check()
    if cluster.workers is not None and cluster.workers > most:
        raise InputError(f"{cluster.workers} workers for {most} shares of work: too few environments and "
                         f"policies for them. At most --workers {most}.")  # fmt: skip
    with connected(cluster, cluster.workers) as ray:
        there = int(ray.cluster_resources().get("CPU", 0)) // CORES
        count = cluster.workers or min(there, most)
        if count > there or not count:
            raise InputError(f"{count} workers take {count * CORES} cores, and the cluster has {there}.")
        crew = RayCrew(ray, partial(make_worker, task, settings), count, say)
        try:
            say(f"{count} workers on {len(crew.nodes())} nodes")
            yield crew
        finally:
            crew.close()


def make_worker(task: str, settings: dict[str, Any]) -> Any:
    """A worker of a run, on this machine: JAX is imported here and not before."""
    from ppga.algorithms import ALGORITHMS, PolicyProblem
    from ppga.cluster.shares import Worker
    from ppga.runs.config import PPGAConfig, from_json
    from ppga.tasks import find, make_task

    config = from_json(PPGAConfig, settings)
    simulation = dict(settings["simulation"], threads=CORES)
    environment = make_task(find(task), **simulation)
    problem = ALGORITHMS[config.algorithm].on(environment, config, lambda: None)
    assert isinstance(problem, PolicyProblem)
    return Worker(problem)


class RayCrew:
    """Workers of a Ray cluster.

    Args:
        ray: connected.
        make: makes a `Worker`, on the worker's machine.
        count: how many.
        say: tells the user of those who died.
    """

    def __init__(self, ray: Any, make: Callable[[], Any], count: int, say: Callable[[str], None]) -> None:
        self.ray, self.make, self.say = ray, make, say
        self.replaced = 0
        self._spent = dict.fromkeys(SPENT, 0.0)  # since it was last told
        self._places: dict[Any, tuple[str, int]] = {}  # of each worker: its node, and its number there
        self._actor = ray.remote(num_cpus=CORES, max_restarts=0, scheduling_strategy="SPREAD")(_Member)
        self._short = False  # of cores
        self.idle = self._hire(count)

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """See `Crew.run`."""
        ray, began = self.ray, time.perf_counter()
        common = [ray.put(one) for one in shared]
        busy_seconds = 0.0
        found: list[Any] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        busy: dict[Any, tuple[Any, int]] = {}
        tried: Counter[int] = Counter()
        while waiting or busy:
            while waiting and self.idle:
                number, worker = waiting.popleft(), self.idle.pop()
                which, own = jobs[number]
                busy[worker.do.remote(kind, common[which], *own)] = worker, number
            done, _ = ray.wait(list(busy), num_returns=1)
            for answer in done:
                worker, number = busy.pop(answer)
                try:
                    found[number], took = ray.get(answer)
                    busy_seconds += took
                    self.idle.append(worker)
                except ray.exceptions.RayActorError:
                    tried[number] += 1
                    if tried[number] == TRIES:
                        raise InputError(f"a share of the work has killed {TRIES} workers; is there enough "
                                         "memory on the nodes?") from None  # fmt: skip
                    waiting.appendleft(number)
                    self._replace(worker)
        moved = size_of(shared) + size_of(jobs) + size_of(found)
        for name, spent in zip(SPENT, (1, moved, time.perf_counter() - began, busy_seconds), strict=True):
            self._spent[name] += spent
        return found

    def record(self) -> dict[str, float]:
        """Of an iteration: how many work, how many were replaced so far, and what their work took since."""
        spent, self._spent = self._spent, dict.fromkeys(SPENT, 0.0)
        return {"workers": len(self._places), "replaced": self.replaced, **spent}

    def nodes(self) -> set[str]:
        """Where the workers are."""
        return {node for node, _ in self._places.values()}

    def pids(self) -> list[int]:
        """The workers' processes."""
        return list(self.ray.get([worker.pid.remote() for worker in self._places]))

    def close(self) -> None:
        """Send everyone home."""
        for worker in self._places:
            self.ray.kill(worker)
        self._places.clear()
        self.idle.clear()

    def _replace(self, worker: Any) -> None:
        node, _ = self._places.pop(worker)
        self.replaced += 1
        self.say(f"a worker on {node} has died; another computes its share again")
        if self._short:
            return
        try:
            self.idle += self._hire(1)
        except InputError as error:
            if not self._places:
                raise
            self._short = True  # its node is lost, most likely: nobody waits for a place again
            self.say(f"it is not replaced: {error} {len(self._places)} workers go on")

    def _hire(self, count: int) -> list[Any]:
        """New workers that have the versions we have, on cores of their own."""
        ray = self.ray
        workers = [self._actor.remote(self.make) for _ in range(count)]
        try:
            introduced = ray.get([worker.introduce.remote() for worker in workers], timeout=PATIENCE)
            numbers = [self._place(*one) for one in zip(workers, introduced, strict=True)]
            ray.get([worker.settle.remote(number) for worker, number in zip(workers, numbers, strict=True)])
        except ray.exceptions.GetTimeoutError:
            free = ray.available_resources().get("CPU", 0)
            for worker in workers:
                ray.kill(worker)
            raise InputError(
                f"no worker has begun within {PATIENCE:.0f} s; {free:g} cores of the cluster are free."
            ) from None
        except ray.exceptions.RayError as error:
            raise InputError(f"a worker cannot begin: {str(error).strip().splitlines()[-1]}") from None
        return workers

    def _place(self, worker: Any, introduced: tuple[str, str, dict[str, str]]) -> int:
        """Check what a worker has; its number on its node."""
        node, name, theirs = introduced
        ours = about()
        differ = {
            what: f"{what} {theirs[what]} there, {ours[what]} here"
            for what in MATTERS
            if theirs[what] != ours[what]
        }
        processor = differ.pop("cpu", None)
        if differ:
            raise InputError(f"the node {name} has other versions: {'; '.join(differ.values())}.")
        if processor:
            self.say(f"warning: {name} has another processor ({processor}): results may differ in their "
                     "last digits with who computes what")  # fmt: skip
        taken = {number for where, number in self._places.values() if where == node}
        number = next(free for free in range(len(taken) + 1) if free not in taken)
        self._places[worker] = node, number
        return number


class _Member:
    """A worker as an actor of Ray."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.worker: Any = None

    def introduce(self) -> tuple[str, str, dict[str, str]]:
        """The node it is on, what that is called, and what it has."""
        ray = import_extra("ray", "ray")
        return ray.get_runtime_context().get_node_id(), socket.gethostname(), about()

    def settle(self, number: int) -> None:
        """Take cores of its own, as the given worker of its node, before JAX looks how many there are."""
        os.environ["JAX_PLATFORMS"] = "cpu"
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            first = number * CORES
            os.sched_setaffinity(0, {cores[(first + i) % len(cores)] for i in range(CORES)})
        self.worker = self.make()

    def pid(self) -> int:
        """The process it is."""
        return os.getpid()

    def do(self, kind: str, *arguments: Any) -> tuple[Any, float]:
        """One job, and the seconds it took."""
        began = time.perf_counter()
        return getattr(self.worker, kind)(*arguments), time.perf_counter() - began


def size_of(tree: Any) -> int:
    """Bytes of all arrays in a tree."""
    import jax

    return sum(getattr(leaf, "nbytes", 8) for leaf in jax.tree.leaves(tree))
