"""Ray's workers fail in all ways they can, on a real cluster whose nodes are processes of this machine."""

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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slider
from pool_worker import Owner, make, make_unless
from ppga.cluster import crew as crews
from ppga.cluster import pinning
from ppga.cluster.crew import Cluster, PoolError, RayCrew, connected
from ppga.errors import InputError
from ppga.study import spent

from conftest import command, lines

SETTINGS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "process_group_cleanup_enabled": False,
}
"""Ray notices within seconds that a node is dead; and leaves what its workers have begun to itself, as it did
before it had the last of these settings."""
SMALL = {"object_store_memory": 100 * 2**20}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that would never end."""

    def hangs(*_: Any) -> None:
        raise AssertionError("this never ends")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster whose head has no cores: each test adds the nodes that it needs, and may lose them."""
    crews.prepare(None)
    utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
    head = {**SMALL, "num_cpus": 0, "include_dashboard": False, "_system_config": SETTINGS}
    with crews.forking():
        made = utils.Cluster(initialize_head=True, head_node_args=head)
    with connected(Cluster(made.address)) as made.ray:
        yield made
    made.shutdown()


@contextmanager
def node(nodes: Any, cores: int = 1) -> Iterator[Any]:
    """One more node, until the test ends or kills it."""
    with crews.forking():
        more = nodes.add_node(num_cpus=cores, **SMALL)
    try:
        yield more
    finally:
        nodes.remove_node(more)
        wait_until(
            lambda: not any(one["Alive"] and one["NodeID"] == more.node_id for one in nodes.ray.nodes())
        )


def wait_until(so: Callable[[], bool]) -> None:
    while not so():
        time.sleep(0.05)


class Pool(RayCrew):
    """A pool of workers without simulations that remembers what it tells."""

    def __init__(self, ray: Any, make: Callable[[], Any] = make, count: int = 1, file: str = "") -> None:
        self.told: list[str] = []
        super().__init__(ray, make, count, self.told.append, file)

    def do(self, kind: str, *arguments: Any) -> Any:
        """One job."""
        shared, *own = arguments
        (result,) = self.run(kind, [shared], [(0, tuple(own))])
        return result


@contextmanager
def pool(*arguments: Any, **options: Any) -> Iterator[Pool]:
    made = Pool(*arguments, **options)
    try:
        yield made
    finally:
        made.close()


# No worker is left.


def test_a_pool_that_shrinks_to_nothing_ends(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first node dies, and its worker cannot be replaced; then the other node does."""
    with node(nodes), node(nodes), pool(nodes.ray, count=2) as both:
        monkeypatch.setattr(crews, "PATIENCE", 5.0)
        with pytest.raises(PoolError, match=r"no Ray worker is left: .*0 cores of the cluster are free"):
            both.do("lose_node", tmp_path / "lost", True)
        assert "it is not replaced" in both.told[1]
        assert both.replaced == 2


def test_a_replacement_that_dies_while_it_begins_ends_the_pool(nodes: Any, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    with node(nodes), pool(nodes.ray, partial(make_unless, marker)) as alone:
        with pytest.raises(PoolError, match="no Ray worker is left: a worker cannot begin: ActorDiedError"):
            alone.do("die", marker)
        assert not alone.nodes()


# Workers, nodes and objects fail in other ways.


def test_an_unreachable_worker_is_killed_so_that_another_has_its_core(nodes: Any, tmp_path: Path) -> None:
    """The connection to it breaks; the worker itself lives, and holds the only core."""
    marker = tmp_path / "begun"

    def cut() -> None:
        wait_until(lambda: marker.exists() and marker.read_text() != "")
        disconnect(int(marker.read_text()))

    with node(nodes), pool(nodes.ray) as alone:
        thread = threading.Thread(target=cut)
        thread.start()
        assert alone.do("hang", marker) == "done"
        thread.join()
        assert "ActorUnavailableError" in alone.told[0]
        wait_until(lambda: not Path(f"/proc/{marker.read_text()}").exists())


def disconnect(pid: int) -> None:
    """Break all connections between this process and another."""
    psutil = importlib.import_module("psutil")  # Ray brings it
    theirs = {one.laddr for one in psutil.Process(pid).net_connections("inet")}
    for one in psutil.Process().net_connections("inet"):
        if one.raddr and one.raddr in theirs:
            with socket.fromfd(one.fd, socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def test_the_work_of_a_lost_node_is_done_on_another(nodes: Any, tmp_path: Path) -> None:
    with node(nodes), node(nodes), pool(nodes.ray) as alone:
        before = alone.nodes()
        assert alone.do("lose_node", tmp_path / "lost") == "done"
        assert not before & alone.nodes()
        assert alone.replaced == 1


class LosesResults:
    """Ray, where a node dies when the first result is there and before it is fetched."""

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
        with pool(lossy) as alone, node(nodes):
            np.testing.assert_array_equal(alone.do("large", None), np.ones(2**24))
            assert "ObjectReconstructionFailedError" in alone.told[0]


def test_work_that_fails_on_every_worker_ends_in_one_line(nodes: Any) -> None:
    """It needs an object whose owner has died, as Ray notices after a while."""
    ray = nodes.ray
    with node(nodes):
        owner = ray.remote(num_cpus=1)(Owner).remote()
        (orphan,) = ray.get(owner.own.remote())
        ray.kill(owner)
        with pool(ray) as alone:
            with pytest.raises(PoolError, match=r"has failed on 3 workers.*OwnerDiedError") as told:
                wait_until(lambda: alone.do("add", 1, orphan) is None)
            assert len(str(told.value).splitlines()) == 1
            assert alone.replaced == 2


def test_all_of_rays_errors_are_tried_again_but_two(nodes: Any) -> None:
    """Those that are exceptions of what a worker does, and a refused token."""
    exceptions = nodes.ray.exceptions
    kinds = {one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)}
    kinds -= {exceptions.RayTaskError, exceptions.AuthenticationError}
    assert {exceptions.NodeDiedError, exceptions.ObjectLostError, exceptions.LocalRayletDiedError} < kinds
    for kind in kinds:
        error = kind.__new__(kind)
        assert crews.is_transient(nodes.ray, error), kind
    lost = exceptions.RayTaskError("do", "", exceptions.ObjectLostError("00", b"", ""))
    assert crews.is_transient(nodes.ray, lost), "of its arguments"
    assert not crews.is_transient(nodes.ray, exceptions.RayTaskError("do", "", InputError("no.")))
    assert not crews.is_transient(nodes.ray, exceptions.AuthenticationError("no."))


def test_too_little_memory_on_the_nodes_is_told(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray kills workers when a gibibyte more is taken than now, be it by this one or by anything else."""
    psutil = importlib.import_module("psutil")
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 2**30) / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", str(limit))
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with (
        node(nodes),
        pytest.raises(InputError, match=r"OutOfMemoryError: .*low on memory") as told,
        pool(nodes.ray) as alone,
    ):
        alone.do("take_memory", 6)
    assert len(str(told.value).splitlines()) == 1


def test_what_a_worker_raises_is_told_and_not_tried_again(nodes: Any) -> None:
    raised = {
        "this cannot be.": InputError("this cannot be."),
        "OSError: [Errno 28] No space left on device": OSError(errno.ENOSPC, "No space left on device"),
    }
    with node(nodes):
        for message, error in raised.items():
            with pool(nodes.ray) as alone, pytest.raises(PoolError) as told:
                alone.do("raises", error)
            assert str(told.value) == f"a worker on {socket.gethostname()} failed: {message}"
            assert alone.replaced == 0


def test_a_refused_token_is_told(nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of another cluster; or none at all."""
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
        crews._reach(nodes.address)


# What workers have.


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


def test_other_versions_of_what_archives_are_computed_by_are_refused(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a node where other packages are found first."""
    others = ("gymnasium", "ribs", "optax")
    for name in others:
        folder = tmp_path / f"{name}-0.0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with node(nodes), pytest.raises(InputError, match="other versions") as told:
        Pool(nodes.ray)
    assert all(f"{name} 0.0.1 there" in str(told.value) for name in others)


def test_a_task_in_a_file_must_be_the_same_on_all_nodes(nodes: Any, tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("one = 1")
    with node(nodes), pool(nodes.ray, file=str(file)) as alone:
        file.write_text("one = 2")
        changed = f"{file} has other contents on the node {socket.gethostname()}"
        with pytest.raises(PoolError, match=changed):
            alone.do("die", tmp_path / "died")
    with node(nodes), pool(nodes.ray, file=str(file)) as alone:
        file.unlink()
        with pytest.raises(PoolError, match=f"{file} is missing on the node"):
            alone.do("die", tmp_path / "died again")


def test_pools_share_no_core_while_there_are_others(nodes: Any) -> None:
    """Pools of two runs, on two nodes that are the same machine."""
    cores = len(os.sched_getaffinity(0))
    with node(nodes, 2), node(nodes, 2), pool(nodes.ray) as one, pool(nodes.ray, count=2) as other:
        mine = one.do("cores", None)
        theirs = other.run("cores", [None], [(0, ())] * 2)
        shared = Counter(core for own in (mine, *theirs) for core in own)
        assert all(len(own) == crews.CORES for own in (mine, *theirs))
        assert len(shared) == min(3, cores), "all of them on cores of their own, as far as there are enough"


def test_a_core_is_claimed_by_one_process_until_it_dies() -> None:
    address = f"\0ppga-test-{secrets.token_hex(8)}"
    claim = f"from ppga.cluster import pinning; print(pinning._claim({address!r}), flush=True); input()"
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
    """A file with the slider's task under another name, and code for commands that a worker of Ray runs."""
    file = folder / f"{name}.py"
    code = Path(slider.__file__).read_text().replace('name = "slider"', f'name = "{name}"')
    file.write_text(
        f"{code}\nimport atexit, os\nfrom pathlib import Path\n"
        f"if 'ray::' in Path(f'/proc/{{os.getppid()}}/cmdline').read_text():\n    {on_ray}\n"
    )
    return file


def test_a_run_without_workers_says_how_it_is_resumed(nodes: Any, tmp_path: Path) -> None:
    """Its only worker dies, and another would have another task."""
    file, run = task_in(tmp_path, "box"), tmp_path / "run"

    def change_and_kill() -> None:
        wait_until(lambda: any(run.glob("checkpoints/*.json")))
        file.write_text(file.read_text() + "# changed\n")
        for worker in below(more, "ray::_Member"):
            worker.kill()

    with node(nodes) as more:
        thread = threading.Thread(target=change_and_kill)
        thread.start()
        done = command(
            "train", f"{file}:Slider", "--algorithm", "map-elites", "--preset", "smoke", "--cluster", "ray",
            "--address", nodes.address, "--output", str(run), "--minutes", "2",
            "--keeping.checkpoint-seconds", "0",
        )  # fmt: skip
        thread.join()
        assert done.returncode == 2
        message, _, again = done.stderr.partition(" Resume with: ppga ")
        changed = f"the task's file {file} has other contents on the node {socket.gethostname()}"
        assert message.startswith(f"ppga: no Ray worker is left: {changed}")
        assert message.endswith("The last checkpoint is intact.")
        assert shlex.split(again)[-2:] == ["--address", nodes.address]
        whole = lines(run)[-1]["iteration"] + 1
        done = command(*shlex.split(again), "--iterations", str(whole))
        assert done.returncode == 0, done.stderr
        assert lines(run)[-1]["iteration"] == whole


def below(node: Any, name: str) -> list[Any]:
    """Processes of a node whose command contains a word."""
    psutil = importlib.import_module("psutil")
    raylet, found = psutil.Process(raylet_of(node)), []
    for one in raylet.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if name in " ".join(one.cmdline()):
                found.append(one)
    return found


def raylet_of(node: Any) -> int:
    """The process that runs a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def test_a_study_goes_on_without_runs_that_fail(nodes: Any, tmp_path: Path) -> None:
    """One takes its worker with it each time, one ends without its metrics, and one is as it should be."""
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
    """The run's process dies with them, so that nothing holds its folder."""
    study, killed, seconds = tmp_path / "study", list[Any](), list[float]()

    def dead(run: Any) -> bool:
        return not run.is_running() or run.status() == "zombie"

    def lose() -> None:
        wait_until(lambda: any(study.glob("sphere/*/checkpoints/*.json")))
        killed.extend(below(first, "sphere") + below(second, "sphere"))
        killed[0].parent().kill()
        wait_until(lambda: dead(killed[0]))
        (folder,) = study.glob("sphere/*")
        seconds.append(spent(folder))
        wait_until(lambda: any(below(one, "sphere") for one in (first, second)))
        for one in (first, second):
            if found := below(one, "sphere"):
                killed.extend(found)
                os.kill(raylet_of(one), signal.SIGKILL)

    with node(nodes) as first, node(nodes) as second:
        thread = threading.Thread(target=lose)
        thread.start()
        done = command(
            "study", "--tasks", "sphere", "--algorithms", "map-elites:keeping.checkpoint-seconds=0",
            "--minutes", "0.1", "--preset", "smoke", "--cluster", "ray", "--address", nodes.address,
            "--cores", "1", "--output", str(study),
        )  # fmt: skip
        thread.join()
    assert done.returncode == 0, done.stdout
    assert seconds[0] < 6, "it did not go on without its worker"
    assert len(killed) == 2
    assert dead(killed[1])
