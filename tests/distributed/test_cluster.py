"""Rollouts in shares: by a pool in this process, and on a real Ray cluster of two nodes on this machine."""

import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga.distributed import ray_pool, ray_worker
from ppga.distributed.cluster import Cluster
from ppga.distributed.ray_executor import RayExecutor
from ppga.distributed.ray_pool import RayPool
from ppga.distributed.shares import Worker, count_shares, environments_per_share, policies_per_share
from ppga.errors import InputError
from ppga.learners.multipliers import MultiplierConfig
from ppga.problems import ConditionedProblem, PolicyProblem, PPOProblem
from ppga.rollouts import Evaluator, EvaluatorSettings, Executor, LocalExecutor
from ppga.studies import is_finished, plan_study, run_study

CONFIG = ppga.preset("smoke", "hopper")[0].replace(
    **{
        "cluster": "ray", "branches": 36, "evaluation.episodes": 2, "confirm": None,
        "ppo.environments": 64, "ppo.rollout_length": 6,
    }
)  # fmt: skip


def problem(executor: Executor) -> PPOProblem:
    assert isinstance(CONFIG, ppga.PPGAConfig)
    task = ppga.make_task("hopper", episode_length=10)
    return PPOProblem(task, CONFIG.ppo, CONFIG.network, executor=executor)


@cache
def local() -> PPOProblem:
    return problem(LocalExecutor())


class PoolHere:
    """A pool in this process that computes its jobs in another order, and one of them twice."""

    def __init__(self, order: int, problem: PolicyProblem | None = None) -> None:
        self.worker, self.order = Worker(problem or local()), order

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        results: list[Any] = [None] * len(jobs)
        for number in [*range(len(jobs))[:: self.order], 0]:
            which, own = jobs[number]
            results[number] = getattr(self.worker, kind)(shared[which], *own)
        return results


@cache
def executor() -> RayExecutor:
    return RayExecutor()


@cache
def shared() -> PPOProblem:
    """A problem whose rollouts are computed by `executor().pool`."""
    return problem(executor())


def test_work_is_cut_into_shares_of_one_size() -> None:
    assert environments_per_share(64 // 2) == 32, "64 environments of two agents"
    assert environments_per_share(2 * 37 // 2) == 1, "37 is prime"
    assert [policies_per_share(episodes) for episodes in (1, 2, 5, 100)] == [32, 16, 6, 1]
    assert count_shares(36, 2, 64, 2) == 3, "36 policies, 16 in a share; 64 environments, 32 in a share"


def test_results_do_not_depend_on_the_order_of_the_shares() -> None:
    results = []
    for order in (1, -1):
        executor().pool = PoolHere(order)
        start = shared().init(jax.random.key(0))
        walked, _ = shared().walk(start, np.array([1.0, 0.0]), jax.random.key(1), 2, scaled=False)
        results.append(jax.tree.map(np.asarray, walked))
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert (np.asarray(results[0].envs.state.steps) == 3 * 6 - 10).all(), "restarted at the time limit"
    assert (results[0].policy.normalizer.count == 3 * 64 * 6).all(), "every environment is counted"


def test_a_conditioned_policy_does_not_depend_on_the_order_of_the_shares() -> None:
    task = ppga.make_task("hopper", episode_length=10)

    assert isinstance(CONFIG, ppga.PPGAConfig)
    ppo, network = CONFIG.ppo, CONFIG.network

    def conditioned(executor: Executor) -> ConditionedProblem:
        return ConditionedProblem(task, ppo, network, MultiplierConfig(points=16), executor=executor)

    here, results = conditioned(LocalExecutor()), []
    targets = np.random.default_rng(0).uniform(-1, 1, (2, ppo.environments, 1)).astype(np.float32)
    for order in (1, -1):
        ray = RayExecutor()
        ray.pool = PoolHere(order, here)
        problem = conditioned(ray)
        state, _ = problem.train(problem.init(jax.random.key(0)), targets, jax.random.key(1))
        results.append(jax.tree.map(np.asarray, state))
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert np.ptp(results[0].envs.state.bodies.target) > 0


def test_evaluations_in_shares_equal_an_evaluation_at_once() -> None:
    many = jax.vmap(local().vppo.init_policy)(jax.random.split(jax.random.key(1), 37))
    many = replace(many, parameters=many.parameters + 0.3 * jax.random.normal(jax.random.key(2), (37, 1)))
    active = np.arange(37) != 5
    task, actor = local().task, local().actor
    expected, _ = Evaluator(task, actor, EvaluatorSettings(2))(many, jax.random.key(3), active)
    executor().pool = PoolHere(1)
    scores, _ = executor().evaluator(task, actor, EvaluatorSettings(2))(many, jax.random.key(3), active)
    assert expected.steps[5].tolist() == [0, 0]
    assert np.ptp(expected.objective) > 0
    for name in ("objective", "measures", "steps"):
        np.testing.assert_allclose(getattr(scores, name), getattr(expected, name), rtol=1e-5, atol=1e-6)


# On Ray.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, which Ray believes to have two cores each."""
    ray_pool.set_environment(None)
    Nodes = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed").Cluster  # noqa: N806
    small = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    with ray_pool.allow_fork():
        nodes = Nodes(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


def pool_of(iteration: ppga.Iteration) -> RayPool:
    """The workers of a run."""
    pool = iteration.algorithm.problem.executor.pool
    assert isinstance(pool, RayPool)
    return pool


def test_the_number_and_the_failures_of_workers_do_not_change_results(cluster: Any, tmp_path: Path) -> None:
    """Three iterations by one worker; two by two workers, one of which is killed, and the third by one."""
    undisturbed: list[dict[str, Any]] = []
    disturbed: list[dict[str, Any]] = []

    def kill(iteration: ppga.Iteration) -> None:
        disturbed.append(iteration.record)
        if not iteration.stop:
            victim = pool_of(iteration).pids()[1]
            threading.Timer(0.05, lambda: os.kill(victim, signal.SIGKILL)).start()

    one_worker, two_workers = Cluster(cluster.address, 1), Cluster(cluster.address, 2)
    expected = ppga.train(
        "hopper", CONFIG, budget=ppga.Budget(iterations=3), cluster=one_worker,
        callbacks=[lambda iteration: undisturbed.append(iteration.record)],
    ).archive  # fmt: skip
    run = tmp_path / "run"
    ppga.train(
        "hopper", CONFIG, budget=ppga.Budget(iterations=2), cluster=two_workers, output=run, callbacks=[kill]
    )
    assert disturbed[-1]["replaced"] >= 1
    budget = ppga.Budget(iterations=3)
    archive = ppga.resume(run, budget=budget, cluster=one_worker, callbacks=[kill]).archive
    assert [record["workers"] for record in disturbed] == [2, 2, 1]
    assert len(expected) > 3
    assert expected.elites.keys() == archive.elites.keys()
    for name, values in expected.elites.items():
        np.testing.assert_array_equal(values, archive.elites[name], err_msg=name)
    for before, after in zip(undisturbed, disturbed, strict=True):
        for name in ("qd_score", "env_steps", "strategy_mean", "walk_value_loss"):
            assert before[name] == after[name], name
    assert all(record["bytes_moved"] > 64 * 6 * 4 for record in undisturbed)


def test_a_run_continues_without_a_worker_that_cannot_be_replaced(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a node is lost, and all cores of the others are taken."""
    records: list[dict[str, Any]] = []

    def lose(iteration: ppga.Iteration) -> None:
        records.append(iteration.record)
        pool = pool_of(iteration)
        if len(records) == 1:
            pool._actor = pool._actor.options(num_cpus=99)
            monkeypatch.setattr(ray_pool, "START_TIMEOUT", 4.0)
            os.kill(pool.pids()[1], signal.SIGKILL)

    two = Cluster(cluster.address, 2)
    ppga.train("hopper", CONFIG, budget=ppga.Budget(iterations=2), cluster=two, callbacks=[lose])
    assert [record["workers"] for record in records] == [2, 1]
    assert records[-1]["replaced"] == 1


def test_impossible_clusters_are_refused_before_training(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(where: Cluster, **changes: Any) -> str:
        config = CONFIG.replace(**changes)
        with pytest.raises(InputError) as error:
            ppga.train("hopper", config, budget=ppga.Budget(iterations=1), cluster=where)
        return str(error.value)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert f"no Ray cluster at 127.0.0.1:{port}" in refused(Cluster(f"127.0.0.1:{port}"))
    assert "HOST:PORT or auto, got 'nowhere'" in refused(Cluster("nowhere"))
    assert "4 workers for 3 shares" in refused(Cluster(cluster.address, 4))
    assert "--workers must be an integer" in refused(Cluster(workers=0))
    assert "--cluster ray" in refused(Cluster(workers=2), cluster="none")
    with pytest.raises(InputError, match="distributes simulations, and sphere has none"):
        ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=1))
    own = ray_worker.versions()
    monkeypatch.setattr(ray_pool, "versions", lambda: own | {"mujoco": "0.1"})
    assert "other versions: mujoco" in refused(Cluster(cluster.address, 1))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'ppga[ray]'" in refused(Cluster())


def test_another_server_is_not_taken_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "START_TIMEOUT", 6.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(InputError, match="does not answer like a Ray cluster"),
    ):
        ray_pool._check_reachable(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_study_runs_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    budget = ppga.Budget(evaluations=20)
    study = plan_study(["sphere"], ["map-elites", "pga-me"], 1, budget, "smoke", 0, tmp_path / "study")
    output = io.StringIO()
    console = Console(file=output, width=120)
    assert not run_study(study, console, Cluster(cluster.address), cores=1), "one of them fails"
    assert f"failed: {tmp_path / 'study' / 'sphere' / 'pga-me-0'}" in output.getvalue()
    assert "failed (exit code 2)" in output.getvalue()
    assert is_finished(study.runs()[0], study)
    assert (tmp_path / "study" / "report" / "report.html").exists()
    with pytest.raises(InputError, match="takes 5 cores"):
        run_study(replace(study, seeds=2), console, Cluster(cluster.address), cores=5)
