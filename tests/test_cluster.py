"""Rollouts by a crew: in this process, and on a real Ray cluster of two nodes on this machine."""

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
from ppga.algorithms import PolicySearch
from ppga.bench.scale import LATENCY, NETWORK, Spent, fit
from ppga.cluster import crew as crews
from ppga.cluster.crew import Cluster
from ppga.cluster.shares import Worker, employ, environments_together, policies_together, shares
from ppga.errors import InputError
from ppga.rollouts import Judge
from ppga.study import finished, plan, run

from conftest import command

HOPPER = ppga.NetworkConfig((8,), (8,))


def config() -> ppga.PPGAConfig:
    smoke, _ = ppga.preset("smoke", "hopper")
    return replace(
        smoke,
        cluster="ray",
        search=replace(smoke.search, branches=36, episodes=2, confirm=0, steady=0.0),
        ppo=replace(smoke.ppo, environments=64, rollout_length=6),
    )


@cache
def problem(employs: bool = False) -> PolicySearch:  # noqa: ARG001
    """One to look at, and one for a crew to work for."""
    settings = config()
    task = ppga.make_task("hopper", episode_length=10)
    return PolicySearch(task, settings.search, settings.ppo, settings.network)


class Here:
    """A crew in this process that does its jobs in an order of its own, and some of them twice."""

    def __init__(self, order: int) -> None:
        self.worker, self.order = Worker(problem()), order

    def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        found: list[Any] = [None] * len(jobs)
        for number in [*range(len(jobs))[:: self.order], 0]:
            which, own = jobs[number]
            found[number] = getattr(self.worker, kind)(shared[which], *own)
        return found


def test_work_is_cut_into_shares_of_one_size() -> None:
    assert environments_together(problem()) == 32, "64 environments, shared by two agents"
    odd = PolicySearch(problem().task, problem().search, replace(problem().ppo, environments=2 * 37), HOPPER)
    assert environments_together(odd) == 1, "37 is prime"
    assert [policies_together(episodes) for episodes in (1, 2, 5, 100)] == [32, 16, 6, 1]
    assert shares(problem()) == 3, "36 policies, 16 at once; 64 environments, 32 at once"


def test_results_do_not_depend_on_who_computes_what_and_when() -> None:
    found = []
    for order in (1, -1):
        employ(problem(True), Here(order))
        start = problem(True).start(jax.random.key(0))
        walked, _ = problem(True).walk(start, np.array([[1.0, 0.0]]), jax.random.key(1), 2)
        found.append(jax.tree.map(np.asarray, walked))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert (np.asarray(found[0].worlds.state.steps) == 3 * 6 - 10).all(), "begun again at the time limit"
    assert (found[0].policies.observation.count == 3 * 64 * 6).all(), "every environment was seen"


def test_shares_are_judged_as_the_whole_is() -> None:
    many = jax.vmap(problem().vppo.init_policy)(jax.random.split(jax.random.key(1), 37))
    many = replace(many, parameters=many.parameters + 0.3 * jax.random.normal(jax.random.key(2), (37, 1)))
    playing = np.arange(37) != 5
    whole, _ = Judge(problem().task, problem().actor, 2)(many, jax.random.key(3), playing)
    employ(problem(True), Here(1))
    cut, _ = problem(True).make_judge(problem().task, problem().actor, 2)(many, jax.random.key(3), playing)
    assert whole.steps[5].tolist() == [0, 0]
    assert np.ptp(whole.objective) > 0
    for name in ("objective", "measures", "steps"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-5, atol=1e-6)


def test_the_cost_model_finds_what_iterations_were_made_of() -> None:
    made = [
        Spent(n, 1.0, learner=2.0, crew=10 / n + 3e-8 * moved + 0.01 * 12, busy=10.0, moved=moved, rounds=12)
        for n, moved in ((1, 3e7), (2, 3e7), (2, 1.5e7))
    ]
    model = fit(made, made[1])
    assert model.byte == pytest.approx(3e-8)
    assert model.round == pytest.approx(0.01)
    over_a_network = 3e7 / NETWORK + 12 * LATENCY
    assert model.seconds(5) == pytest.approx(2 + 10 / 5 + 3e-8 * 3e7 + 0.01 * 12 + over_a_network)
    saved = 10 / 2 / 2 - 3e7 / NETWORK  # a second machine of two cores, beside what it is sent
    assert model.pays(2) == pytest.approx(12 * LATENCY / saved)
    assert fit([replace(one, crew=10 / one.workers) for one in made], made[0]).byte == 0


def test_full_archives_are_measured() -> None:
    done = command("bench", "memory", "--task", "hopper", "--preset", "smoke", "--shape", "7")
    assert done.returncode == 0, done.stderr
    assert "of 7 cells" in done.stdout


# On Ray.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two cores each, as far as Ray is told."""
    crews.prepare(None)
    Nodes = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed").Cluster  # noqa: N806
    small = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    with crews.forking():
        nodes = Nodes(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        nodes.add_node(**small)
    yield nodes
    nodes.shutdown()


def test_the_number_of_workers_and_their_deaths_change_nothing(cluster: Any, tmp_path: Path) -> None:
    """Three iterations by one worker; two by two, one of which is killed meanwhile, and the third by one."""
    calm: list[dict[str, Any]] = []
    killed: list[dict[str, Any]] = []

    def kill(iteration: ppga.Iteration) -> None:
        killed.append(iteration.record)
        if not iteration.stop:
            crew = iteration.algorithm.problem.make_judge.args[0]  # type: ignore[attr-defined]
            victim = crew.pids()[1]
            threading.Timer(0.05, lambda: os.kill(victim, signal.SIGKILL)).start()

    alone, together = Cluster(cluster.address, 1), Cluster(cluster.address, 2)
    one = ppga.train(
        "hopper", config(), budget=ppga.Budget(iterations=3), cluster=alone,
        callbacks=[lambda iteration: calm.append(iteration.record)],
    ).archive  # fmt: skip
    run = tmp_path / "run"
    ppga.train(
        "hopper", config(), budget=ppga.Budget(iterations=2), cluster=together, output=run, callbacks=[kill]
    )
    assert killed[-1]["replaced"] >= 1
    several = ppga.resume(run, budget=ppga.Budget(iterations=3), cluster=alone, callbacks=[kill]).archive
    assert [record["workers"] for record in killed] == [2, 2, 1], "as many as there are"
    assert len(one) > 3
    assert one.elites.keys() == several.elites.keys()
    for name, values in one.elites.items():
        np.testing.assert_array_equal(values, several.elites[name], err_msg=name)
    for before, after in zip(calm, killed, strict=True):
        for name in ("qd_score", "env_steps", "xnes_mean", "walk_value_loss"):
            assert before[name] == after[name], name
    assert all(record["bytes_moved"] > 64 * 6 * 4 for record in calm)


def test_who_cannot_be_replaced_is_done_without(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a node is lost, and all cores of the others are taken."""
    records: list[dict[str, Any]] = []

    def lose(iteration: ppga.Iteration) -> None:
        records.append(iteration.record)
        crew = iteration.algorithm.problem.make_judge.args[0]  # type: ignore[attr-defined]
        if len(records) == 1:
            crew._actor = crew._actor.options(num_cpus=99)
            monkeypatch.setattr(crews, "PATIENCE", 4.0)
            os.kill(crew.pids()[1], signal.SIGKILL)

    two = Cluster(cluster.address, 2)
    ppga.train("hopper", config(), budget=ppga.Budget(iterations=2), cluster=two, callbacks=[lose])
    assert [record["workers"] for record in records] == [2, 1]
    assert records[-1]["replaced"] == 1


def test_what_cannot_work_is_told_before_training(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(where: Cluster, **changes: Any) -> str:
        with pytest.raises(InputError) as told:
            ppga.train(
                "hopper", replace(config(), **changes), budget=ppga.Budget(iterations=1), cluster=where
            )
        return str(told.value)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert f"no Ray cluster at 127.0.0.1:{port}" in refused(Cluster(f"127.0.0.1:{port}"))
    assert "HOST:PORT or auto, got 'nowhere'" in refused(Cluster("nowhere"))
    assert "4 workers for 3 shares" in refused(Cluster(cluster.address, 4))
    assert "--workers must be a whole number" in refused(Cluster(workers=0))
    assert "--cluster ray" in refused(Cluster(workers=2), cluster="none")
    with pytest.raises(InputError, match="there are none"):
        ppga.train("sphere", config(), budget=ppga.Budget(iterations=1))
    ours = crews.about()
    monkeypatch.setattr(crews, "about", lambda: ours | {"mujoco": "0.1"})
    assert "other versions: mujoco" in refused(Cluster(cluster.address, 1))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'ppga[ray]'" in refused(Cluster())


def test_what_listens_must_be_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "PATIENCE", 6.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(InputError, match="does not answer as a Ray cluster"),
    ):
        crews._reach(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_study_is_spread_over_the_cluster(cluster: Any, tmp_path: Path) -> None:
    budget = ppga.Budget(evaluations=20)
    planned = plan(["sphere"], ["map-elites", "pga-me"], 1, budget, "smoke", 0, tmp_path / "study")
    console = Console(file=io.StringIO(), width=120)
    assert not run(planned, console, Cluster(cluster.address), cores=1), "one of them fails"
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"failed: {tmp_path / 'study' / 'sphere' / 'pga-me-0'}" in told
    assert "failed (exit code 2)" in told
    assert finished(planned.runs()[0], planned)
    assert (tmp_path / "study" / "report" / "report.html").exists()
    with pytest.raises(InputError, match="takes 5 cores"):
        run(replace(planned, seeds=2), console, Cluster(cluster.address), cores=5)
