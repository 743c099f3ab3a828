"""A crew of Ray's workers: shares go to whoever is idle, and those who die are replaced."""

import hashlib
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ppga import machine
from ppga.cluster.pinning import pin
from ppga.errors import InputError, at_least_one, import_extra, told
from ppga.version import __version__

CORES = 1
"""Cores a worker sees. XLA rounds differently with another number, so all workers have the same."""
TRIES = 3
"""How often the same work may fail for reasons of the cluster before it is taken to be their cause."""
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
MATTERS = (
    "python", "ppga", "jax", "jaxlib", "mujoco", "numpy", "gymnasium", "ribs", "optax", "cpu",
)  # fmt: skip
"""What must be the same everywhere for results to be."""
OLDEST_RAY = (2, 52)
"""Ray's first version whose clusters authenticate those who connect."""
CONNECT = """
import sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(error)
    raise
"""
"""Connects to a Ray cluster; prints the reason where that fails."""


class PoolError(InputError):
    """The workers of a cluster cannot do a run's work; what the run has written before is intact."""


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

    Raises:
        InputError: there is no such cluster, or it cannot be used.
        PoolError: the cluster failed meanwhile.
    """
    cluster.check()
    prepare(cluster.address)
    ray = import_extra("ray", "ray")
    _check_ray(ray.__version__)
    with ExitStack() as stack:
        if not ray.is_initialized():  # by whoever calls us from Python
            _initialize(ray, cluster.address, cores)
            stack.callback(ray.shutdown)
        try:
            yield ray
        except ray.exceptions.RayError as error:
            raise PoolError(f"the Ray cluster failed: {reason_of(ray, error)}") from error


def _check_ray(version: str) -> None:
    """Raise an InputError for a version of Ray whose clusters let anyone run code."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise InputError(
            f"Ray {version} is too old: whoever reaches its clusters can run code there. Install {oldest} or "
            f"newer on all nodes: pip install 'ray>={oldest}'"
        )


def _initialize(ray: Any, address: str | None, cores: int | None) -> None:
    """Connect this process to a Ray cluster; without an address, to a new one with that many cores."""
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        settings |= {"num_cpus": cores or machine.visible_cores(), "include_dashboard": False}
    else:
        _reach(address)
        settings["address"] = address
    try:
        with forking():
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {said}") from None


def reason_of(ray: Any, error: Exception) -> str:
    """What has failed on a cluster, in one line: an exception's own message where a worker raised it."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    lines = told(cause).strip().splitlines()
    return lines[-1 if getattr(cause, "actor_init_failed", False) else 0]


def is_transient(ray: Any, error: Exception) -> bool:
    """Whether work that failed with one of Ray's errors may succeed elsewhere.

    That holds for all that befalls workers, nodes and objects, and neither for exceptions of the code that
    they run nor for a refused token.
    """
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return isinstance(cause, ray.exceptions.RayError) and not isinstance(
        cause, ray.exceptions.AuthenticationError
    )


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
    """Raise an InputError where no Ray cluster answers, or one that refuses this process's token."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"no Ray cluster at {address}: {error}. Begin one with: ray start --head --port {port}"
            ) from None
    # Ray may try for many minutes, and logs every time: a process that can be killed does it first
    try:
        tried = subprocess.run(
            [sys.executable, "-c", CONNECT, address],
            capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE / 2, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"what listens at {address} does not answer as a Ray cluster does.") from None
    if "AuthenticationError" in tried.stderr:
        raise InputError(
            f"the Ray cluster at {address} refuses the token of this process, or it has none. Set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token."
        )
    if tried.returncode:
        said = tried.stdout.strip() or f"connecting ended with exit code {tried.returncode}"
        raise InputError(f"no Ray cluster at {address}: {said.splitlines()[0]}")


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
        task_file = task.rpartition(":")[0]  # of FILE.py:CLASS
        crew = RayCrew(ray, partial(make_worker, task, settings), count, say, task_file)
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
        task_file: whose contents must be the same for the workers; empty if there is none.
    """

    def __init__(
        self, ray: Any, make: Callable[[], Any], count: int, say: Callable[[str], None], task_file: str = ""
    ) -> None:
        self.ray, self.make, self.say, self.task_file = ray, make, say, task_file
        self.digest = digest_of(task_file)
        self.replaced = 0
        self._spent = dict.fromkeys(SPENT, 0.0)  # since it was last told
        self._places: dict[Any, tuple[str, str]] = {}  # of each worker: its node's id and name
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
                except ray.exceptions.RayError as error:
                    if not is_transient(ray, error):
                        _, node = self._places[worker]
                        raise PoolError(f"a worker on {node} failed: {reason_of(ray, error)}") from error
                    tried[number] += 1
                    if tried[number] == TRIES:
                        raise PoolError(
                            f"a share of the work has failed on {TRIES} workers; is there enough memory on "
                            f"the nodes? {reason_of(ray, error)}"
                        ) from error
                    waiting.appendleft(number)
                    self._replace(worker, reason_of(ray, error))
                else:
                    busy_seconds += took
                    self.idle.append(worker)
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
        """End all workers."""
        for worker in self._places:
            self._kill(worker)
        self._places.clear()
        self.idle.clear()

    def _kill(self, worker: Any) -> None:
        """End a worker, so that its core is free; it may be dead already."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(worker)

    def _replace(self, worker: Any, reason: str) -> None:
        """Start another worker in place of one that failed.

        Raises:
            PoolError: that was the last one, and no other can be started.
        """
        _, node = self._places.pop(worker)
        self._kill(worker)
        self.replaced += 1
        self.say(f"a worker on {node} has failed; another computes its share again ({reason})")
        if self._short and self._places:
            return
        try:
            self.idle += self._hire(1)
        except InputError as error:
            if not self._places:
                raise PoolError(f"no Ray worker is left: {error}") from error
            self._short = True  # its node is lost, most likely: nobody waits for a place again
            self.say(f"it is not replaced: {error} {len(self._places)} workers go on")

    def _hire(self, count: int) -> list[Any]:
        """New workers that have what we have, on cores of their own; all of them, or an InputError."""
        ray = self.ray
        workers = [self._actor.remote(self.make) for _ in range(count)]
        with ExitStack() as failed:
            for worker in workers:
                failed.callback(self._kill, worker)
            try:
                introduced = ray.get(
                    [worker.introduce.remote(self.task_file) for worker in workers], timeout=PATIENCE
                )
                for _, name, theirs, digest in introduced:
                    self._check(name, theirs, digest)
                ray.get([worker.settle.remote() for worker in workers])
            except ray.exceptions.GetTimeoutError:
                free = ray.available_resources().get("CPU", 0)
                raise InputError(
                    f"no worker has begun within {PATIENCE:.0f} s; {free:g} cores of the cluster are free."
                ) from None
            except ray.exceptions.RayError as error:
                raise InputError(f"a worker cannot begin: {reason_of(ray, error)}") from error
            failed.pop_all()
        self._places |= {
            worker: (node, name) for worker, (node, name, *_) in zip(workers, introduced, strict=True)
        }
        return workers

    def _check(self, name: str, theirs: dict[str, str], digest: str) -> None:
        """Check what a worker on the node of that name has: versions, processor, and the task's file."""
        ours = about()
        differ = {
            what: f"{what} {theirs[what]} there, {ours[what]} here"
            for what in MATTERS
            if theirs[what] != ours[what]
        }
        processor = differ.pop("cpu", None)
        if differ:
            raise InputError(f"the node {name} has other versions: {'; '.join(differ.values())}.")
        if digest != self.digest:
            state = "has other contents" if digest else "is missing"
            raise InputError(f"the task's file {self.task_file} {state} on the node {name}; copy it there.")
        if processor:
            self.say(f"warning: {name} has another processor ({processor}): results may differ in their "
                     "last digits with who computes what")  # fmt: skip


class _Member:
    """A worker as an actor of Ray."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.worker: Any = None

    def introduce(self, task_file: str) -> tuple[str, str, dict[str, str], str]:
        """The node it is on, what that is called, what it has, and the SHA-256 of a task's file there."""
        ray = import_extra("ray", "ray")
        node = ray.get_runtime_context().get_node_id()
        return node, socket.gethostname(), about(), digest_of(task_file)

    def settle(self) -> None:
        """Take cores of its own, before JAX looks how many there are, and make the worker."""
        os.environ["JAX_PLATFORMS"] = "cpu"
        pin(CORES)
        self.worker = self.make()

    def pid(self) -> int:
        """The process it is."""
        return os.getpid()

    def do(self, kind: str, *arguments: Any) -> tuple[Any, float]:
        """One job, and the seconds it took."""
        began = time.perf_counter()
        return getattr(self.worker, kind)(*arguments), time.perf_counter() - began


def digest_of(file: str) -> str:
    """The SHA-256 of a file's contents; empty where there is no such file."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def size_of(tree: Any) -> int:
    """Bytes of all arrays in a tree."""
    import jax

    return sum(getattr(leaf, "nbytes", 8) for leaf in jax.tree.leaves(tree))
