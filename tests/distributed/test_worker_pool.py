"""Failures of Ray's workers, nodes and objects, on a cluster whose nodes are processes of this machine."""

import errno
import importlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppga.distributed import pinning, ray_pool, ray_worker
from ppga.distributed.cluster import Cluster
from ppga.distributed.ray_pool import PoolError, RayPool, connected
from ppga.errors import InputError
from ppga.studies.progress import seconds_used

from helpers import slider
from helpers.commands import command
from helpers.pool_worker import Owner, make, make_unless
from helpers.runs import lines

TESTS = Path(__file__).parents[1]
SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "process_group_cleanup_enabled": False,
}
"""Ray notices within seconds that a node is dead. It does not end processes that its workers start, as in
older versions, which do not have the last of these settings."""
SMALL = {"object_store_memory": 100 * 2**20}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Fail a test that does not end within five minutes."""

    def hangs(*_: Any) -> None:
        raise AssertionError("the test does not end")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster whose head has no cores: each test adds the nodes that it needs, and may lose them."""
    ray_pool.set_environment(None)
    utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
    head = {**SMALL, "num_cpus": 0, "include_dashboard": False, "_system_config": SETTINGS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"
        )  # workers import the helpers
        with ray_pool.allow_fork():
            cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        with connected(Cluster(cluster.address)) as cluster.ray:
            yield cluster
        cluster.shutdown()


@contextmanager
def node(nodes: Any, cores: int = 1) -> Iterator[Any]:
    """A further node; the test may kill it."""
    with ray_pool.allow_fork():
        added = nodes.add_node(num_cpus=cores, **SMALL)
    try:
        yield added
    finally:
        nodes.remove_node(added)
        wait_until(
            lambda: not any(each["Alive"] and each["NodeID"] == added.node_id for each in nodes.ray.nodes())
        )


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


class Pool(RayPool):
    """A pool of workers without simulations that stores its messages."""

    def __init__(self, ray: Any, make: Callable[[], Any] = make, count: int = 1, file: str = "") -> None:
        self.messages: list[str] = []
        super().__init__(ray, make, count, self.messages.append, file)

    def do(self, kind: str, *arguments: Any) -> Any:
        """The result of a single job."""
        shared, *own = arguments
        (result,) = self.run(kind, [shared], [(0, tuple(own))])
        return result


@contextmanager
def pool(*arguments: Any, **options: Any) -> Iterator[Pool]:
    opened = Pool(*arguments, **options)
    try:
        yield opened
    finally:
        opened.close()


# No worker is left.


def test_a_pool_without_workers_ends(nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first node dies, and its worker cannot be replaced; then the other node does."""
    with node(nodes), node(nodes), pool(nodes.ray, count=2) as both:
        monkeypatch.setattr(ray_pool, "START_TIMEOUT", 5.0)
        with pytest.raises(PoolError, match=r"no Ray worker is left: .*0 cores of the cluster are free"):
            both.do("lose_node", tmp_path / "lost", True)
        assert "it is not replaced" in both.messages[1]
        assert both.replaced == 2


def test_a_replacement_that_dies_at_its_start_ends_the_pool(nodes: Any, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    with node(nodes), pool(nodes.ray, partial(make_unless, marker)) as single:
        with pytest.raises(PoolError, match="no Ray worker is left: a worker cannot start: ActorDiedError"):
            single.do("die", marker)
        assert not single.nodes()


# Workers, nodes and objects fail in other ways.


def test_an_unreachable_worker_is_killed_and_frees_its_core(nodes: Any, tmp_path: Path) -> None:
    """The connection breaks, but the worker is alive and holds the only core."""
    marker = tmp_path / "started"

    def disconnect_worker() -> None:
        wait_until(lambda: marker.exists() and marker.read_text() != "")
        disconnect(int(marker.read_text()))

    with node(nodes), pool(nodes.ray) as single:
        thread = threading.Thread(target=disconnect_worker)
        thread.start()
        assert single.do("hang", marker) == "done"
        thread.join()
        assert "ActorUnavailableError" in single.messages[0]
        wait_until(lambda: not Path(f"/proc/{marker.read_text()}").exists())


def disconnect(pid: int) -> None:
    """Break all connections between this process and another."""
    psutil = importlib.import_module("psutil")  # installed with Ray
    remote = {each.laddr for each in psutil.Process(pid).net_connections("inet")}
    for each in psutil.Process().net_connections("inet"):
        if each.raddr and each.raddr in remote:
            with socket.fromfd(each.fd, socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def test_the_work_of_a_lost_node_is_computed_on_another(nodes: Any, tmp_path: Path) -> None:
    with node(nodes), node(nodes), pool(nodes.ray) as single:
        before = single.nodes()
        assert single.do("lose_node", tmp_path / "lost") == "done"
        assert not before & single.nodes()
        assert single.replaced == 1


class LosesResults:
    """Ray, but a node dies after the first result is computed and before it is fetched."""

    def __init__(self, ray: Any, lose: Callable[[], None]) -> None:
        self.ray, self.lose, self.lost = ray, lose, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ray, name)

    def wait(self, answers: list[Any], num_returns: int) -> Any:
        ready = self.ray.wait(answers, num_returns=num_returns, fetch_local=False)
        if not self.lost:
            self.lose()
            self.lost = True
        return ready


def test_a_lost_result_is_computed_again(nodes: Any) -> None:
    with node(nodes) as first:
        lossy = LosesResults(nodes.ray, lambda: os.kill(raylet_of(first), signal.SIGKILL))
        with pool(lossy) as single, node(nodes):
            np.testing.assert_array_equal(single.do("large", None), np.ones(2**24))
            assert "ObjectReconstructionFailedError" in single.messages[0]


def test_work_that_fails_on_every_worker_ends_the_pool_with_one_line(nodes: Any) -> None:
    """It needs an object whose owner has died, which Ray notices after a while."""
    ray = nodes.ray
    with node(nodes):
        owner = ray.remote(num_cpus=1)(Owner).remote()
        (orphan,) = ray.get(owner.own.remote())
        ray.kill(owner)
        with pool(ray) as single:
            with pytest.raises(PoolError, match=r"has failed on 3 workers.*OwnerDiedError") as error:
                wait_until(lambda: single.do("add", 1, orphan) is None)
            assert len(str(error.value).splitlines()) == 1
            assert single.replaced == 2


def test_all_errors_of_ray_but_two_are_transient(nodes: Any) -> None:
    """The other two are exceptions of the code that a worker runs, and a refused token."""
    exceptions = nodes.ray.exceptions
    kinds = {
        kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    kinds -= {exceptions.RayTaskError, exceptions.AuthenticationError}
    assert {exceptions.NodeDiedError, exceptions.ObjectLostError, exceptions.LocalRayletDiedError} < kinds
    for kind in kinds:
        error = kind.__new__(kind)
        assert ray_pool.is_transient(nodes.ray, error), kind
    lost = exceptions.RayTaskError("do", "", exceptions.ObjectLostError("00", b"", ""))
    assert ray_pool.is_transient(nodes.ray, lost), "an argument is lost"
    assert not ray_pool.is_transient(nodes.ray, exceptions.RayTaskError("do", "", InputError("no.")))
    assert not ray_pool.is_transient(nodes.ray, exceptions.AuthenticationError("no."))


def test_a_lack_of_memory_on_the_nodes_is_reported(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray kills workers as soon as all processes together use a gibibyte more than now."""
    psutil = importlib.import_module("psutil")
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 2**30) / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", str(limit))
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with (
        node(nodes),
        pytest.raises(InputError, match=r"OutOfMemoryError: .*low on memory") as error,
        pool(nodes.ray) as single,
    ):
        single.do("take_memory", 6)
    assert len(str(error.value).splitlines()) == 1


def test_an_exception_of_a_worker_is_reported_and_its_job_is_not_repeated(nodes: Any) -> None:
    raised = {
        "invalid input.": InputError("invalid input."),
        "OSError: [Errno 28] No space left on device": OSError(errno.ENOSPC, "No space left on device"),
    }
    with node(nodes):
        for message, exception in raised.items():
            with pool(nodes.ray) as single, pytest.raises(PoolError) as error:
                single.do("raises", exception)
            assert str(error.value) == f"a worker on {socket.gethostname()} failed: {message}"
            assert single.replaced == 0


def test_a_refused_token_is_reported(nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token of another cluster, or none at all."""
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "2")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    words = ["train", "hopper", "--preset", "smoke", "--cluster", "ray", "--address", nodes.address]
    done = subprocess.run(
        [sys.executable, "-m", "ppga", *words, "--output", str(tmp_path / "run")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    refused = f"the Ray cluster at {nodes.address} refuses the token"
    assert done.stderr.startswith(f"ppga: {refused}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=refused):
        ray_pool._check_reachable(nodes.address)


# Versions, files and cores of workers.


@pytest.mark.parametrize(
    ("version", "usable"),
    [("2.9.3", False), ("2.51.1", False), ("2.52.0", True), ("2.100.0", True), ("3.0.0.dev0", True)],
)
def test_a_ray_without_authentication_is_refused(
    nodes: Any, version: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes.ray, "__version__", version)
    if usable:
        with connected(Cluster(nodes.address)):
            return
    with pytest.raises(InputError, match=rf"Ray {version} is too old.*ray>=2\.52"), connected(Cluster()):
        pass


def test_nodes_with_other_versions_are_refused(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On this node, Python finds other packages first."""
    packages = ("gymnasium", "ribs", "optax")
    for name in packages:
        folder = tmp_path / f"{name}-0.0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with node(nodes), pytest.raises(InputError, match="other versions") as error:
        Pool(nodes.ray)
    assert all(f"{name} 0.0.1 there" in str(error.value) for name in packages)


def test_a_task_in_a_file_must_be_the_same_on_all_nodes(nodes: Any, tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("value = 1")
    with node(nodes), pool(nodes.ray, file=str(file)) as single:
        file.write_text("value = 2")
        changed = f"{file} has other contents on the node {socket.gethostname()}"
        with pytest.raises(PoolError, match=changed):
            single.do("die", tmp_path / "died")
    with node(nodes), pool(nodes.ray, file=str(file)) as single:
        file.unlink()
        with pytest.raises(PoolError, match=f"{file} is missing on the node"):
            single.do("die", tmp_path / "died later")


def test_pools_use_different_cores_while_there_are_enough(nodes: Any) -> None:
    """Pools of two runs, on two nodes that are the same machine."""
    cores = len(os.sched_getaffinity(0))
    with node(nodes, 2), node(nodes, 2), pool(nodes.ray) as first, pool(nodes.ray, count=2) as second:
        workers = [first.do("cores", None), *second.run("cores", [None], [(0, ())] * 2)]
        assert all(len(own) == ray_worker.CORES for own in workers)
        used = {core for own in workers for core in own}
        assert len(used) == min(3, cores), "each on its own core, as far as there are enough"


def test_a_core_is_claimed_by_one_process_until_it_dies() -> None:
    address = f"\0ppga-test-{secrets.token_hex(8)}"
    claim = f"from ppga.distributed import pinning; print(pinning._claim({address!r}), flush=True); input()"
    words = [sys.executable, "-c", claim]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not pinning._claim(address)
        holder.kill()
    assert pinning._claim(address)
    pinning._claims.pop().close()


# Runs and studies.


def task_in(folder: Path, name: str, on_ray: str = "pass") -> Path:
    """A file with the slider under another name, and code for commands that a worker of Ray starts."""
    file = folder / f"{name}.py"
    code = Path(slider.__file__).read_text().replace('name = "slider"', f'name = "{name}"')
    file.write_text(
        f"{code}\nimport atexit, os\nfrom pathlib import Path\n"
        f"if 'ray::' in Path(f'/proc/{{os.getppid()}}/cmdline').read_text():\n    {on_ray}\n"
    )
    return file


def test_a_run_that_loses_all_workers_shows_how_to_resume_it(nodes: Any, tmp_path: Path) -> None:
    """Its only worker dies, and a new one would have another task."""
    file, run = task_in(tmp_path, "box"), tmp_path / "run"

    def change_and_kill() -> None:
        wait_until(lambda: any(run.glob("checkpoints/*.json")))
        file.write_text(file.read_text() + "# changed\n")
        for worker in descendants(added, "ray::WorkerActor"):
            worker.kill()

    with node(nodes) as added:
        thread = threading.Thread(target=change_and_kill)
        thread.start()
        done = command(
            "train", f"{file}:Slider", "--algorithm", "map-elites", "--preset", "smoke", "--cluster", "ray",
            "--address", nodes.address, "--output", str(run), "--minutes", "2",
            "--log.checkpoint-seconds", "0",
        )  # fmt: skip
        thread.join()
        assert done.returncode == 2
        message, _, resume = done.stderr.partition(" Resume with: ppga ")
        changed = f"the task's file {file} has other contents on the node {socket.gethostname()}"
        assert message.startswith(f"ppga: no Ray worker is left: {changed}")
        assert message.endswith("The last checkpoint is intact.")
        assert shlex.split(resume)[-2:] == ["--address", nodes.address]
        iterations = lines(run)[-1]["iteration"] + 1
        done = command(*shlex.split(resume), "--iterations", str(iterations))
        assert done.returncode == 0, done.stderr
        assert lines(run)[-1]["iteration"] == iterations


def descendants(node: Any, word: str) -> list[Any]:
    """Processes of a node whose command contains a word."""
    psutil = importlib.import_module("psutil")
    processes = []
    for process in psutil.Process(raylet_of(node)).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if word in " ".join(process.cmdline()):
                processes.append(process)
    return processes


def raylet_of(node: Any) -> int:
    """Id of the process that runs a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def test_failed_runs_do_not_affect_other_runs_of_a_study(nodes: Any, tmp_path: Path) -> None:
    """One run kills its worker each time, one ends without its metrics, and one succeeds."""
    study = tmp_path / "study"
    metrics = study / "loses" / "map-elites-0" / "metrics.jsonl"
    kills = task_in(tmp_path, "kills", "os.kill(os.getppid(), 9)")
    loses = task_in(tmp_path, "loses", f"atexit.register(os.remove, {str(metrics)!r})")
    with node(nodes, 2):
        done = command(
            "study", "--tasks", f"{kills}:Slider", f"{loses}:Slider", "sphere", "--algorithms", "map-elites",
            "--minutes", "0.02", "--preset", "smoke", "--cluster", "ray", "--address", nodes.address,
            "--cores", "1", "--episodes", "1", "--output", str(study),
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"failed: {study}/kills/map-elites-0 (WorkerCrashedError: " in done.stdout
    assert f"failed: {metrics.parent} (FileNotFoundError: [Errno 2]" in done.stdout
    assert "cannot write" not in done.stdout + done.stderr
    assert (study / "sphere" / "map-elites-0" / "archive").exists()
    assert (study / "report" / "report.html").exists()


def test_a_run_of_a_study_is_resumed_when_its_worker_or_its_node_dies(nodes: Any, tmp_path: Path) -> None:
    """The run's process dies with them, so that its folder is not locked."""
    study, killed, seconds = tmp_path / "study", list[Any](), list[float]()

    def is_dead(run: Any) -> bool:
        return not run.is_running() or run.status() == "zombie"

    def lose() -> None:
        wait_until(lambda: any(study.glob("sphere/*/checkpoints/*.json")))
        killed.extend(descendants(first, "sphere") + descendants(second, "sphere"))
        killed[0].parent().kill()
        wait_until(lambda: is_dead(killed[0]))
        (folder,) = study.glob("sphere/*")
        seconds.append(seconds_used(folder))
        wait_until(lambda: any(descendants(each, "sphere") for each in (first, second)))
        for each in (first, second):
            if processes := descendants(each, "sphere"):
                killed.extend(processes)
                os.kill(raylet_of(each), signal.SIGKILL)

    with node(nodes) as first, node(nodes) as second:
        thread = threading.Thread(target=lose)
        thread.start()
        done = command(
            "study", "--tasks", "sphere", "--algorithms", "map-elites:log.checkpoint-seconds=0",
            "--minutes", "0.1", "--preset", "smoke", "--cluster", "ray", "--address", nodes.address,
            "--cores", "1", "--output", str(study),
        )  # fmt: skip
        thread.join()
    assert done.returncode == 0, done.stdout
    assert seconds[0] < 6, "the run ended with its worker"
    assert len(killed) == 2
    assert is_dead(killed[1])
