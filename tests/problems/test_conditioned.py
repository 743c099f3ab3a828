"""Policies conditioned on target measures."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.archives import ArchiveConfig, EliteArchive
from ppga.learners.agent import Agent
from ppga.learners.conditioned import WeightedTrajectory
from ppga.learners.multipliers import MultiplierConfig
from ppga.learners.ppo_config import PPOConfig
from ppga.physics import Array, Bodies
from ppga.problems import ConditionedProblem, ConditionedState, NetworkConfig
from ppga.search import TargetConfig, sample_targets, scaled_measures
from ppga.tasks.conditioned import ConditionedTask, target_inputs

from helpers.slider import Slider

ENVIRONMENTS, LENGTH, REWARD = 8, 8, 2
PPO = PPOConfig(environments=ENVIRONMENTS, rollout_length=LENGTH, epochs=2, minibatches=2, initial_std=0.3)


@pytest.fixture(scope="module")
def problem() -> ConditionedProblem:
    return ConditionedProblem(
        Slider(), PPO, NetworkConfig((8, 8), (8,)), MultiplierConfig(points=16), REWARD / ENVIRONMENTS
    )


@pytest.fixture(scope="module")
def state(problem: ConditionedProblem) -> ConditionedState:
    """A state after some updates, so that nothing is at its initial value."""
    state = problem.init(jax.random.key(0))
    targets = np.random.default_rng(0).uniform(-1, 1, (4, ENVIRONMENTS, 1)).astype(np.float32)
    return problem.train(state, targets, jax.random.key(1))[0]


def test_a_folded_policy_acts_as_the_conditioned_one(
    problem: ConditionedProblem, state: ConditionedState
) -> None:
    rng = np.random.default_rng(1)
    targets = rng.uniform(-1, 1, (5, 1)).astype(np.float32)
    observations = jnp.asarray(rng.normal(size=(7, 2)), jnp.float32)
    conditioned = jax.tree.map(lambda leaf: leaf[0], state.agent.policy)
    own = problem.policy(state)
    actions = []
    for target, parameters in zip(targets, problem.fold(state, targets), strict=True):
        inputs = jnp.broadcast_to(target_inputs(jnp.asarray(target)[None]), (7, 7))
        expected = conditioned.mean_action(
            problem.vppo.actor, jnp.concatenate([observations, inputs], axis=1)
        )
        actions.append(replace(own, parameters=parameters).mean_action(problem.actor, observations))
        np.testing.assert_allclose(actions[-1], expected, atol=1e-5)
    assert np.std(actions, axis=0).max() > 1e-3, "the target matters"


def test_an_episode_keeps_its_target_and_is_that_of_the_task_itself() -> None:
    task = Slider()
    conditioned = ConditionedTask(task)
    keys, targets = jax.random.split(jax.random.key(0), 3), jnp.array([[-0.5], [0.0], [0.8]])
    own, state = task.reset(keys, 3), conditioned.reset(keys, 3)
    state = replace(state, bodies=replace(state.bodies, next_target=targets))
    for number in range(task.episode_length):
        np.testing.assert_array_equal(state.observation[:, :2], own.observation)
        np.testing.assert_array_equal(state.observation[:, 2:], target_inputs(jnp.zeros((3, 1))))
        action = jax.random.normal(jax.random.key(number), (3, 1))
        own, state = task.step(own, action), conditioned.step(state, action)
        np.testing.assert_array_equal(state.reward, own.reward)
        np.testing.assert_array_equal(state.proxies, own.proxies)
    assert state.finished.all()
    restarted = conditioned.restart(state, keys)
    np.testing.assert_array_equal(restarted.bodies.target, targets)
    np.testing.assert_array_equal(restarted.observation[:, 2:], target_inputs(targets))
    np.testing.assert_array_equal(restarted.observation[:, :2], task.restart(own, keys).observation)


def test_steps_are_weighted_by_the_multipliers_of_their_target(
    problem: ConditionedProblem, state: ConditionedState
) -> None:
    rng = np.random.default_rng(2)
    _, trajectory = problem.vppo.collect(
        state.agent, jax.tree.map(jnp.copy, state.envs), jax.random.split(jax.random.key(2), 1)
    )
    current, following = rng.uniform(-1, 1, (2, ENVIRONMENTS, 1)).astype(np.float32)
    finished = rng.uniform(size=(1, ENVIRONMENTS, LENGTH)) < 0.2
    trajectory = replace(trajectory, finished=jnp.asarray(finished))
    weighted, _, _ = problem._weigh(trajectory, current, following, state.multipliers)
    for environment in range(ENVIRONMENTS):
        target = current[environment]
        for step in range(LENGTH):
            multiplier = problem.multipliers.at(state.multipliers, target[None])[0]
            expected = np.array([1.0, 0.0 if environment < REWARD else float(multiplier[0])])
            np.testing.assert_allclose(
                weighted.weights[0, environment, step], expected / np.linalg.norm(expected), atol=1e-5
            )
            if finished[0, environment, step]:
                target = following[environment]


def test_advantages_sum_those_of_all_objectives(problem: ConditionedProblem, state: ConditionedState) -> None:
    """The end of an episode cuts off the reward's return, but not that of a measure proxy."""
    rng = np.random.default_rng(3)
    agent: Agent = jax.tree.map(lambda leaf: leaf[0], state.agent)
    _, trajectory = problem.vppo.collect(
        state.agent, jax.tree.map(jnp.copy, state.envs), jax.random.split(jax.random.key(3), 1)
    )
    row = jax.tree.map(lambda leaf: leaf[0], trajectory)
    shape = ENVIRONMENTS, LENGTH
    terminated = rng.uniform(size=shape) < 0.2
    finished = terminated | (rng.uniform(size=shape) < 0.2)
    final = np.where(finished[..., None], rng.normal(size=(*shape, 2)), 0.0)
    weights = rng.normal(size=(*shape, 2))
    row = replace(
        row, terminated=jnp.asarray(terminated), finished=jnp.asarray(finished),
        truncation_value=jnp.asarray(final), active=jnp.ones(shape, bool),
    )  # fmt: skip
    data = problem.vppo._ppo.prepare(
        agent, WeightedTrajectory(**vars(row), weights=jnp.asarray(weights)), jnp.zeros(1)
    )

    observations = np.concatenate([row.observation, row.last_observation[:, None]], axis=1)
    values = np.asarray(
        problem.vppo.critic(
            agent.learner.critic, agent.policy.normalizer.normalize(jnp.asarray(observations))
        )
    )
    scales = np.sqrt(np.diagonal(agent.return_statistics.covariance))
    mixed, targets = np.zeros(shape), np.zeros((*shape, 2))
    for head in range(2):
        for i in range(ENVIRONMENTS):
            for start in range(LENGTH):
                factor, advantage = 1.0, 0.0
                for j in range(start, LENGTH):
                    following = final[i, j, head] if finished[i, j] else values[i, j + 1, head]
                    if head == 0 and terminated[i, j]:
                        following = 0.0
                    reward = float(row.rewards[i, j, head]) / scales[head]
                    advantage += factor * (reward + PPO.gamma * following - values[i, j, head])
                    if finished[i, j]:
                        break
                    factor *= PPO.gamma * PPO.gae_lambda
                mixed[i, start] += weights[i, start, head] * advantage
                targets[i, start, head] = values[i, start, head] + advantage
    expected = (mixed - mixed.mean()) / mixed.std()
    np.testing.assert_allclose(data.batch.advantage, expected.ravel(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(data.batch.target, targets.reshape(-1, 2), rtol=1e-3, atol=1e-3)


def test_inputs_for_the_target_are_not_normalized(state: ConditionedState) -> None:
    normalizer = state.agent.policy.normalizer
    np.testing.assert_array_equal(normalizer.mean[0, 2:], np.zeros(7))
    np.testing.assert_array_equal(normalizer.variance[0, 2:], np.ones(7))
    assert (np.asarray(normalizer.variance[0, :2]) != 1).all()


class NearSlider(Slider):
    """A slider whose measure covers the places that it reaches within an episode."""

    def proxies(self, body: Bodies) -> Array:
        return jnp.clip(20 * body.qpos, -1, 1)


def test_a_policy_learns_to_reach_its_targets() -> None:
    """After learning, folded policies take the slider where they are told to."""
    config = replace(PPO, environments=64, rollout_length=16, epochs=4, minibatches=4, learning_rate=3e-3,
                     target_kl=0.03, min_std=0.05)  # fmt: skip
    problem = ConditionedProblem(
        NearSlider(), config, NetworkConfig((16, 16), (16,)), MultiplierConfig(points=16)
    )
    state = problem.init(jax.random.key(0))
    goals = np.array([[-0.7], [0.7]], np.float32)

    def error(state: ConditionedState) -> float:
        scores = problem.evaluate(state, problem.fold(state, goals), jax.random.key(9), 2)
        return float(np.abs(scores.measures - goals).mean())

    before = error(state)
    rng = np.random.default_rng(0)
    for iteration in range(4):
        targets = rng.uniform(-1, 1, (20, 64, 1)).astype(np.float32)
        state, report = problem.train(state, targets, jax.random.key(iteration))
    assert error(state) < 0.5 * before
    assert report.env_steps == 20 * 64 * 16


def test_targets_are_near_elites_whose_episodes_are_long() -> None:
    ranges = ((0.0, 1.0), (-2.0, 2.0))
    elites = EliteArchive(1, (10, 10), ranges, {}, 0.0, ArchiveConfig())
    rng = np.random.default_rng(0)
    config = TargetConfig(uniform=0.0, radius=0.05, min_length=0.5)
    assert np.ptp(sample_targets(config, elites, rng, 1000), axis=0).min() > 1.9, "all, without an elite"
    measures = np.array([[0.25, 1.0], [0.95, -1.9], [0.5, 0.0]], np.float32)
    elites.add(
        np.zeros((3, 1), np.float32), np.ones(3, np.float32), measures,
        length=np.array([900.0, 1000.0, 400.0], np.float32),
    )  # fmt: skip
    targets = sample_targets(config, elites, rng, 1000)
    places = scaled_measures(measures[:2], ranges)
    distances = np.abs(targets[:, None] - places[None]).max(axis=2)
    assert (distances.min(axis=1) <= 0.1 + 1e-6).all()
    assert {0, 1} == set(distances.argmin(axis=1)), "the third elite's episodes are short"
    assert targets.min() >= -1
    assert targets.max() <= 1
    mixed = sample_targets(replace(config, uniform=0.5), elites, rng, 4000)
    far = np.abs(mixed[:, None] - places[None]).max(axis=2).min(axis=1) > 0.1
    assert 0.4 < far.mean() < 0.5
