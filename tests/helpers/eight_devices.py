"""Learning on eight devices compared with one; `test_devices.py` runs this file with eight devices."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga.distributed.devices import DeviceExecutor
from ppga.errors import InputError
from ppga.learners.agent import Agent, ReturnStatistics
from ppga.learners.vppo import VPPO
from ppga.physics import Array
from ppga.policies.normalizer import NormalizerState
from ppga.policies.policy import Policy
from ppga.problems import PPOProblem
from ppga.rollouts import Evaluator, EvaluatorSettings, Executor, LocalExecutor
from ppga.tasks import find

from helpers.runs import same_runs

FILE = Path(__file__).with_name("slider.py")
SLIDER = f"{FILE}:Slider"
TASK = f"{FILE}:{os.environ['PPGA_DEVICES_TASK']}"
PHYSICS: Any = "mjx" if TASK == SLIDER else "mujoco"  # has no meaning for the other task
DEVICES = 8
AGENTS = 2  # reward, and one measure
LENGTH = 4


def config(algorithm: str = "ppga", **ppo: Any) -> Any:
    smoke: Any = ppga.preset("smoke", TASK, algorithm)[0]
    simulation = ppga.SimulationConfig(physics=PHYSICS, episode_length=20)
    settings = {
        "environments": 32, "rollout_length": LENGTH, "epochs": 2, "minibatches": 1, "target_kl": 0.0,
    }  # fmt: skip
    return replace(smoke, cluster="jax", simulation=simulation, ppo=replace(smoke.ppo, **settings | ppo))


@cache
def task() -> ppga.Environment:
    return ppga.make_task(find(TASK), physics=PHYSICS, episode_length=20)


def problem_on(executor: Executor) -> PPOProblem:
    return PPOProblem(task(), config().ppo, config().network, executor=executor)


@cache
def one_device() -> PPOProblem:
    return problem_on(LocalExecutor())


@cache
def all_devices() -> PPOProblem:
    executor = DeviceExecutor()
    assert executor.devices == DEVICES == jax.device_count()
    return problem_on(executor)


@cache
def agents() -> Agent:
    vppo = one_device().vppo
    policies = jax.vmap(vppo.init_policy)(jax.random.split(jax.random.key(1), AGENTS))
    learners = jax.vmap(vppo.init_learner)(jax.random.split(jax.random.key(2), AGENTS))
    returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * AGENTS), ReturnStatistics.initial(AGENTS))
    return Agent(policies, returns, learners)


def keys() -> Array:
    return jax.random.split(jax.random.key(3), AGENTS)


def to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def assert_close(actual: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
        to_numpy(actual),
        to_numpy(expected),
    )


def test_each_device_collects_the_rollouts_of_its_own_environments() -> None:
    many, one = all_devices().vppo, one_device().vppo
    envs = many.init_envs(jax.random.key(0))
    start = to_numpy(envs)
    after, trajectory = many.collect(agents(), envs, keys())
    assert trajectory.observation.shape == (AGENTS, 16, LENGTH, task().observation_size)
    assert len(trajectory.observation.sharding.device_set) == DEVICES
    for device in (0, 5):
        rows = slice(device * 4, (device + 1) * 4)  # 2 environments of each agent
        own_keys = jax.vmap(lambda key, device=device: jax.random.fold_in(key, device))(keys())
        own_envs = jax.tree.map(lambda leaf, rows=rows: jnp.asarray(leaf[rows]), start)
        expected_after, expected = one.collect(agents(), own_envs, own_keys)
        assert_close(expected_after, jax.tree.map(lambda leaf, rows=rows: leaf[rows], after))
        own = jax.tree.map(lambda leaf, d=device: leaf[:, 2 * d : 2 * d + 2], trajectory)
        assert_close(expected, own)


def test_an_update_on_all_devices_equals_one_on_a_single_device() -> None:
    many, one = all_devices().vppo, one_device().vppo
    _, trajectory = many.collect(agents(), many.init_envs(jax.random.key(0)), keys())
    weights, gathered = jnp.eye(AGENTS), jax.tree.map(jnp.asarray, to_numpy(trajectory))
    learned, report, _ = many.update(agents(), trajectory, weights, keys())
    expected, expected_report, _ = one.update(agents(), gathered, weights, keys())
    assert np.abs(np.asarray(learned.policy.parameters - agents().policy.parameters)).max() > 1e-4
    assert_close(learned, expected)
    assert_close(report, expected_report)
    normalized, expected_normalized = (
        vppo.update_normalizers(agents(), data) for vppo, data in ((many, trajectory), (one, gathered))
    )
    assert_close(normalized, expected_normalized)
    steps = many.update_recorded(agents(), trajectory, weights, keys())[2]
    assert steps is not None
    assert_close(steps[:, -1], expected.policy.parameters)


def test_devices_share_running_normalizers_and_joint_updates() -> None:
    """With the PPO of the preset paper-scripts."""
    paper: Any = ppga.preset("paper-scripts", TASK)[0]
    settings = replace(config().ppo, **{name: getattr(paper.ppo, name) for name in (
        "update", "normalize", "normalizers", "bootstrap_truncated", "clip_values", "target_kl",
    )})  # fmt: skip
    many, one = (
        VPPO(task(), (8,), (8,), settings, executor, AGENTS)
        for executor in (DeviceExecutor(), LocalExecutor())
    )
    start = Agent(
        replace(agents().policy, normalizer=jax.vmap(lambda _: NormalizerState.fresh(2))(jnp.arange(AGENTS))),
        jax.tree.map(lambda leaf: jnp.stack([leaf] * AGENTS), ReturnStatistics.fresh()),
        jax.vmap(one.init_learner)(jax.random.split(jax.random.key(2), AGENTS)),
    )
    _, trajectory = many.collect(start, many.init_envs(jax.random.key(0)), keys())
    gathered = jax.tree.map(jnp.asarray, to_numpy(trajectory))
    for agent in range(AGENTS):
        policy, rows = jax.tree.map(lambda leaf, agent=agent: leaf[agent], (start.policy, gathered))
        observed = policy.normalizer.running(rows.observation, rows.active)
        mean = one.actor(policy.parameters, observed)
        assert_close(rows.action, mean + jnp.exp(policy.log_std) * rows.noise)
    learned, report, _ = many.update(start, trajectory, jnp.eye(AGENTS), keys())
    expected, expected_report, _ = one.update(start, gathered, jnp.eye(AGENTS), keys())
    assert np.abs(np.asarray(learned.policy.parameters - start.policy.parameters)).max() > 1e-4
    assert_close(learned, expected)
    assert_close(report, expected_report)


def test_scores_do_not_depend_on_the_number_of_devices() -> None:
    n = 13
    many: Policy = jax.vmap(one_device().vppo.init_policy)(jax.random.split(jax.random.key(1), n))
    many = replace(many, parameters=many.parameters + 0.3 * jax.random.normal(jax.random.key(2), (n, 1)))
    active = np.arange(n) != 5
    settings = (task(), one_device().actor, EvaluatorSettings(2, store_transitions=True))
    expected, expected_transitions = Evaluator(*settings)(many, jax.random.key(3), active)
    scores, transitions = all_devices().executor.evaluator(*settings)(many, jax.random.key(3), active)
    assert np.ptp(expected.objective) > 0
    assert expected.steps[5].tolist() == [0, 0]
    assert expected_transitions is not None
    assert transitions is not None
    assert transitions.observation.shape == (n, 2, 20, task().observation_size)
    assert_close(scores, expected)
    assert_close(transitions.action, expected_transitions.action)


def test_a_restart_resets_the_environments_on_all_devices() -> None:
    problem = all_devices()
    state = problem.init(jax.random.key(0))
    assert (np.asarray(state.envs.state.steps) > 0).all()
    elite = {name: values.copy() for name, values in problem.stored_fields(state).items()}
    elite["solution"] = problem.solution(state)
    restarted = problem.restart(state, elite, jax.random.key(1))
    assert (np.asarray(restarted.envs.state.steps) == 0).all()
    assert len(restarted.envs.returns.sharding.device_set) == DEVICES
    np.testing.assert_array_equal(problem.solution(restarted), elite["solution"])
    walked, _ = problem.walk(restarted, np.array([0.0, 1.0]), jax.random.key(2), 1, scaled=True)
    assert (np.asarray(walked.envs.state.steps) == LENGTH).all()
    assert np.isfinite(problem.solution(walked)).all()


@pytest.mark.parametrize("algorithm", ["ppga", "mcppo"])
def test_a_resumed_run_on_eight_devices_equals_an_uninterrupted_one(algorithm: str, tmp_path: Path) -> None:
    records = []
    ppga.train(
        TASK, config(algorithm), budget=ppga.Budget(iterations=3), output=tmp_path / "uninterrupted",
        callbacks=[lambda iteration: records.append(iteration.record)],
    )  # fmt: skip
    ppga.train(TASK, config(algorithm), budget=ppga.Budget(iterations=2), output=tmp_path / "resumed")
    ppga.resume(tmp_path / "resumed", budget=ppga.Budget(iterations=3), task=TASK)
    same_runs(tmp_path / "uninterrupted", tmp_path / "resumed")
    assert records[-1]["devices"] == DEVICES
    assert records[-1]["coverage"] > 0


def test_work_that_devices_cannot_share_is_refused_before_training() -> None:
    def refused(settings: ppga.PPGAConfig, name: str = TASK) -> str:
        with pytest.raises(InputError) as error:
            ppga.train(name, settings, budget=ppga.Budget(iterations=1))
        return str(error.value)

    assert "32 can" in refused(config(environments=30))
    assert "on each of 8 devices cannot be cut into 16 minibatches" in refused(config(minibatches=16))
    assert "--simulation.physics mjx" in refused(
        replace(config(), simulation=ppga.SimulationConfig(physics="mujoco")), SLIDER
    )
    assert "sphere has none" in refused(config(), "sphere")
