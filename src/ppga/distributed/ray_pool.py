"""A pool of Ray workers: idle workers get shares of the work, and workers that fail are replaced."""

import os
import pickle
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppga import machine
from ppga.distributed.cluster import Cluster
from ppga.distributed.ray_worker import CORES, VERSIONS, WorkerActor, digest_of, make_worker, versions
from ppga.errors import InputError, error_text, import_extra

if TYPE_CHECKING:  # imports JAX
    from ppga.rollouts import Work

TRIES = 3
"""Attempts of a share that fails because of the cluster, before the share itself is taken to be the cause."""
START_TIMEOUT = 120.0
"""Seconds to wait for a worker to start."""
METRICS = ("rounds", "bytes_moved", "pool_seconds", "busy_seconds")
"""Metrics of a pool: calls, bytes sent and received, seconds that the learner waited for the pool, and
seconds that all workers together computed."""
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
OLDEST_RAY = (2, 52)
"""The first version of Ray whose clusters authenticate connections."""
CONNECT = """
import sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(error)
    raise
"""
"""A script that connects to a Ray cluster and prints the reason if that fails."""


class PoolError(InputError):
    """The workers of a cluster cannot do a run's work; the files that the run has written are intact."""


@contextmanager
def connected(cluster: Cluster, cores: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; without an address, to a new one on this machine.

    Args:
        cluster: the cluster.
        cores: number of cores of a new cluster; all visible cores by default.

    Raises:
        InputError: there is no such cluster, or it cannot be used.
        PoolError: the cluster failed while it was in use.
    """
    cluster.check()
    set_environment(cluster.address)
    ray = import_extra("ray", "ray")
    _check_ray(ray.__version__)
    with ExitStack() as stack:
        if not ray.is_initialized():  # by a caller's own ray.init
            _initialize(ray, cluster.address, cores)
            stack.callback(ray.shutdown)
        try:
            yield ray
        except ray.exceptions.RayError as error:
            raise PoolError(f"the Ray cluster failed: {reason_of(ray, error)}") from error


def _check_ray(version: str) -> None:
    """Raise an InputError for a version of Ray whose clusters run code without authentication."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise InputError(
            f"Ray {version} is too old: its clusters run code without authentication. Install {oldest} or "
            f"newer on all nodes: pip install 'ray>={oldest}'"
        )


def _initialize(ray: Any, address: str | None, cores: int | None) -> None:
    """Connect this process to a Ray cluster; without an address, to a new one with this number of cores."""
    settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        settings |= {"num_cpus": cores or machine.visible_cores(), "include_dashboard": False}
    else:
        _check_reachable(address)
        settings["address"] = address
    try:
        with allow_fork():
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {reason}") from None


def reason_of(ray: Any, error: Exception) -> str:
    """The reason of an error of a cluster in one line: the exception's message if a worker raised one."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    lines = error_text(cause).strip().splitlines()
    return lines[-1 if getattr(cause, "actor_init_failed", False) else 0]


def is_transient(ray: Any, error: Exception) -> bool:
    """Whether work that failed with one of Ray's errors may succeed on another worker.

    True for failures of workers, nodes and objects; false for exceptions of the code that workers run, and
    for a refused token.
    """
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return isinstance(cause, ray.exceptions.RayError) and not isinstance(
        cause, ray.exceptions.AuthenticationError
    )


def set_environment(address: str | None) -> None:
    """Set the environment variables that Ray reads when it is imported, unless they are set.

    For a new cluster, Ray would write a token into the home folder. A later `ray start` would then use this
    token, and processes that connect to that cluster would not.
    """
    defaults = dict(RAY_SETTINGS)
    if "RAY_AUTH_MODE" not in os.environ:
        if address is None:
            defaults |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        elif (Path.home() / ".ray" / "auth_token").exists():
            defaults["RAY_AUTH_MODE"] = "token"
    os.environ.update({name: os.environ.get(name, value) for name, value in defaults.items()})


@contextmanager
def allow_fork() -> Iterator[None]:
    """Ignore JAX's warning of forks: the processes that Ray forks execute another program at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        yield


def _check_reachable(address: str) -> None:
    """Raise an InputError if no Ray cluster answers there, or if it refuses this process's token."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"no Ray cluster at {address}: {error}. Start one with: ray start --head --port {port}"
            ) from None
    # Ray may try for many minutes and logs every attempt, so a process that can be killed connects first
    try:
        attempt = subprocess.run(
            [sys.executable, "-c", CONNECT, address],
            capture_output=True, encoding="utf-8", errors="replace", timeout=START_TIMEOUT / 2, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the process that listens at {address} does not answer like a Ray cluster."
        ) from None
    if "AuthenticationError" in attempt.stderr:
        raise InputError(
            f"the Ray cluster at {address} refuses the token of this process, or it has none. Set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token."
        )
    if attempt.returncode:
        reason = attempt.stdout.strip() or f"connecting ended with exit code {attempt.returncode}"
        raise InputError(f"no Ray cluster at {address}: {reason.splitlines()[0]}")


@contextmanager
def ray_pool(cluster: Cluster, work: "Work", say: Callable[[str], None]) -> Iterator["RayPool"]:
    """A pool of workers for a run.

    Args:
        cluster: the cluster.
        work: what the run asks of its workers.
        say: shows a message to the user.
    """
    cluster.check()
    if cluster.workers is not None and cluster.workers > work.shares:
        raise InputError(
            f"{cluster.workers} workers for {work.shares} shares of work: too few environments and policies "
            f"for them. At most --workers {work.shares}."
        )
    with connected(cluster, cluster.workers) as ray:
        available = int(ray.cluster_resources().get("CPU", 0)) // CORES
        count = cluster.workers or min(available, work.shares)
        if count > available or not count:
            raise InputError(f"{count} workers need {count * CORES} cores, and the cluster has {available}.")
        task_file = work.task.rpartition(":")[0]  # of FILE.py:NAME
        # pickled, because unpickling it imports JAX, which must not be imported before `WorkerActor.start`
        make = partial(make_worker, pickle.dumps(work.build), work.task, work.config)
        pool = RayPool(ray, make, count, say, task_file)
        try:
            say(f"{count} workers on {len(pool.nodes())} nodes")
            yield pool
        finally:
            pool.close()


class RayPool:
    """Workers of a Ray cluster.

    Args:
        ray: the module `ray`, connected to the cluster.
        make: makes a `Worker`; called on the worker's machine.
        count: number of workers.
        say: shows a message to the user, such as that a worker has failed.
        task_file: file of the task, whose contents must be the same on all nodes; empty if there is none.
    """

    def __init__(
        self, ray: Any, make: Callable[[], Any], count: int, say: Callable[[str], None], task_file: str = ""
    ) -> None:
        self.ray, self.make, self.say, self.task_file = ray, make, say, task_file
        self.digest = digest_of(task_file)
        self.replaced = 0
        self._metrics = dict.fromkeys(METRICS, 0.0)  # since the last `record`
        self._nodes: dict[Any, tuple[str, str]] = {}  # of each worker: its node's id and name
        self._actor = ray.remote(num_cpus=CORES, max_restarts=0, scheduling_strategy="SPREAD")(WorkerActor)
        self._too_few_cores = False
        self.idle = self._start(count)

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """See `Pool.run`."""
        ray, start = self.ray, time.perf_counter()
        references = [ray.put(argument) for argument in shared]
        busy_seconds = 0.0
        results: list[Any] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        busy: dict[Any, tuple[Any, int]] = {}
        failures: Counter[int] = Counter()
        while waiting or busy:
            while waiting and self.idle:
                number, worker = waiting.popleft(), self.idle.pop()
                which, own = jobs[number]
                busy[worker.run.remote(kind, references[which], *own)] = worker, number
            done, _ = ray.wait(list(busy), num_returns=1)
            for answer in done:
                worker, number = busy.pop(answer)
                try:
                    results[number], seconds = ray.get(answer)
                except ray.exceptions.RayError as error:
                    if not is_transient(ray, error):
                        _, node = self._nodes[worker]
                        raise PoolError(f"a worker on {node} failed: {reason_of(ray, error)}") from error
                    failures[number] += 1
                    if failures[number] == TRIES:
                        raise PoolError(
                            f"a share of the work has failed on {TRIES} workers; is there enough memory on "
                            f"the nodes? {reason_of(ray, error)}"
                        ) from error
                    waiting.appendleft(number)
                    self._replace(worker, reason_of(ray, error))
                else:
                    busy_seconds += seconds
                    self.idle.append(worker)
        moved = size_of(shared) + size_of(jobs) + size_of(results)
        values = (1, moved, time.perf_counter() - start, busy_seconds)
        for name, value in zip(METRICS, values, strict=True):
            self._metrics[name] += value
        return results

    def metrics(self) -> dict[str, float]:
        """Number of workers, workers replaced so far, and the metrics since the last call."""
        metrics, self._metrics = self._metrics, dict.fromkeys(METRICS, 0.0)
        return {"workers": len(self._nodes), "replaced": self.replaced, **metrics}

    def nodes(self) -> set[str]:
        """Names of the nodes with workers."""
        return {node for node, _ in self._nodes.values()}

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self.ray.get([worker.pid.remote() for worker in self._nodes]))

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._nodes:
            self._kill(worker)
        self._nodes.clear()
        self.idle.clear()

    def _kill(self, worker: Any) -> None:
        """Stop a worker, which may have failed already, so that its core is free."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(worker)

    def _replace(self, worker: Any, reason: str) -> None:
        """Start another worker in place of one that failed.

        Raises:
            PoolError: it was the last worker, and none can be started.
        """
        _, node = self._nodes.pop(worker)
        self._kill(worker)
        self.replaced += 1
        self.say(f"a worker on {node} has failed; another one computes its share again ({reason})")
        if self._too_few_cores and self._nodes:
            return
        try:
            self.idle += self._start(1)
        except InputError as error:
            if not self._nodes:
                raise PoolError(f"no Ray worker is left: {error}") from error
            self._too_few_cores = True  # most likely the node is lost: do not wait for its cores again
            self.say(f"it is not replaced: {error} {len(self._nodes)} workers remain")

    def _start(self, count: int) -> list[Any]:
        """Start workers, each on its own core, and check their nodes.

        Raises:
            InputError: one of them cannot be started; then none is.
        """
        ray = self.ray
        workers = [self._actor.remote(self.make) for _ in range(count)]
        with ExitStack() as failed:
            for worker in workers:
                failed.callback(self._kill, worker)
            try:
                nodes = ray.get(
                    [worker.describe_node.remote(self.task_file) for worker in workers], timeout=START_TIMEOUT
                )
                for _, name, node_versions, digest in nodes:
                    self._check(name, node_versions, digest)
                ray.get([worker.start.remote() for worker in workers])
            except ray.exceptions.GetTimeoutError:
                free = ray.available_resources().get("CPU", 0)
                raise InputError(
                    f"no worker started within {START_TIMEOUT:.0f} s; {free:g} cores of the cluster are free."
                ) from None
            except ray.exceptions.RayError as error:
                raise InputError(f"a worker cannot start: {reason_of(ray, error)}") from error
            failed.pop_all()
        self._nodes |= {worker: (node, name) for worker, (node, name, *_) in zip(workers, nodes, strict=True)}
        return workers

    def _check(self, name: str, node_versions: dict[str, str], digest: str) -> None:
        """Raise an InputError unless a node has the same versions and the same task file as this machine.

        Args:
            name: of the node.
            node_versions: its `versions()`.
            digest: SHA-256 of the task file there.
        """
        own = versions()
        different = {
            what: f"{what} {node_versions[what]} there, {own[what]} here"
            for what in VERSIONS
            if node_versions[what] != own[what]
        }
        processor = different.pop("cpu", None)
        if different:
            raise InputError(f"the node {name} has other versions: {'; '.join(different.values())}.")
        if digest != self.digest:
            state = "has other contents" if digest else "is missing"
            raise InputError(f"the task's file {self.task_file} {state} on the node {name}; copy it there.")
        if processor:
            self.say(f"warning: {name} has another processor ({processor}): the last digits of results may "
                     "depend on which worker computes them")  # fmt: skip


def size_of(tree: Any) -> int:
    """Number of bytes of all arrays in a tree."""
    import jax

    return sum(getattr(leaf, "nbytes", 8) for leaf in jax.tree.leaves(tree))
