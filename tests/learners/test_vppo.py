"""VPPO: agents against separate runs, updates against plain PPO, and advantages against a slow loop."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from ppga.learners.agent import Agent, ReturnStatistics, Trajectory
from ppga.learners.ppo import PPOConfig, advantages
from ppga.learners.vppo import VPPO, EnvBatch
from ppga.policies.policy import log_density
from ppga.tasks import make_task

AGENTS, SHARE = 3, 2
CONFIG = PPOConfig(
    environments=AGENTS * SHARE, rollout_length=8, epochs=2, minibatches=4, target_kl=0.0, learning_rate=3e-3
)


@cache
def vppo(environments: int = AGENTS * SHARE) -> VPPO:
    # episodes of five steps, so that time limits and restarts fall inside the rollouts
    task = make_task("halfcheetah", episode_length=5)
    return VPPO(task, (8,), (8,), replace(CONFIG, environments=environments))


def some_agents(count: int = AGENTS) -> Agent:
    learner = vppo()
    policies = jax.vmap(learner.init_policy)(jax.random.split(jax.random.key(0), count))
    learners = jax.vmap(learner.init_learner)(jax.random.split(jax.random.key(1), count))
    statistics = jax.tree.map(
        lambda leaf: jnp.stack([leaf] * count), ReturnStatistics.initial(learner.objectives)
    )
    return Agent(policies, statistics, learners)


def part(tree: Any, at: slice) -> Any:
    return jax.tree.map(lambda leaf: leaf[at], tree)


def copied(envs: EnvBatch) -> EnvBatch:
    copies: EnvBatch = jax.tree.map(jnp.copy, envs)
    return copies


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_advantages_equal_a_slow_loop(seed: int, gamma: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(seed)
    e, t = 3, 7
    rewards, values, truncation_value = rng.standard_normal((3, e, t))
    last_value = rng.standard_normal(e)
    terminated = rng.uniform(size=(e, t)) < 0.2
    truncated = (rng.uniform(size=(e, t)) < 0.2) & ~terminated
    truncation_value = np.where(truncated, truncation_value, 0.0)
    expected = np.zeros((e, t))
    for i in range(e):
        for start in range(t):
            weight = 1.0
            for j in range(start, t):
                if terminated[i, j]:
                    following = 0.0
                elif truncated[i, j]:
                    following = truncation_value[i, j]
                else:
                    following = values[i, j + 1] if j + 1 < t else last_value[i]
                expected[i, start] += weight * (rewards[i, j] + gamma * following - values[i, j])
                if terminated[i, j] or truncated[i, j]:
                    break
                weight *= gamma * gae_lambda
    computed = advantages(
        jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(last_value), jnp.asarray(terminated),
        jnp.asarray(terminated | truncated), jnp.asarray(truncation_value), gamma, gae_lambda,
    )  # fmt: skip
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-4)


def test_a_rollout_records_its_steps() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    start = learner.init_envs(jax.random.key(2))
    envs, trajectory = learner.collect(agents, copied(start), keys)
    assert trajectory.observation.shape == (AGENTS, SHARE, 8, 17)
    np.testing.assert_array_equal(trajectory.observation[:, :, 0].reshape(-1, 17), start.state.observation)
    np.testing.assert_array_equal(trajectory.last_observation.reshape(-1, 17), envs.state.observation)
    assert np.asarray(trajectory.finished).sum() == AGENTS * SHARE, (
        "an episode of five steps ends once in eight"
    )
    assert np.asarray(trajectory.finished)[:, :, 4].all()
    assert not np.asarray(trajectory.terminated).any(), "a time limit is not a failure"
    assert (np.asarray(trajectory.truncation_value) != 0).sum() == AGENTS * SHARE
    for agent in range(AGENTS):
        policy = part(agents.policy, agent)  # type: ignore[arg-type]
        mean = policy.mean_action(learner.actor, trajectory.observation[agent])
        std = np.exp(policy.log_std)
        np.testing.assert_allclose(trajectory.action[agent], mean + std * trajectory.noise[agent], atol=1e-5)
    rewards = np.asarray(trajectory.rewards)
    running = np.zeros(rewards.shape[:2] + rewards.shape[3:])
    for t in range(8):
        running = CONFIG.gamma * running + rewards[:, :, t]
        np.testing.assert_allclose(trajectory.returns[:, :, t], running, rtol=1e-4, atol=1e-4)
        running *= ~np.asarray(trajectory.finished)[:, :, t, None]


def test_the_value_after_a_time_limit_is_that_of_the_last_observation_before_the_restart() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    start = learner.init_envs(jax.random.key(2))
    _, trajectory = learner.collect(agents, copied(start), keys)
    state, step = start.state, jax.jit(learner.task.step)
    for t in range(5):
        state = step(state, trajectory.action[:, :, t].reshape(AGENTS * SHARE, -1))
    assert np.asarray(state.truncated).all()
    for agent in range(AGENTS):
        single = part(agents, agent)  # type: ignore[arg-type]
        last = single.policy.normalizer.normalize(state.observation.reshape(AGENTS, SHARE, -1)[agent])
        expected = learner.critic(single.learner.critic, last)[:, 0]
        np.testing.assert_allclose(trajectory.truncation_value[agent, :, 4], expected, atol=1e-4)


def test_many_agents_learn_as_in_separate_runs() -> None:
    """Agent i of VPPO learns as in a run with this agent only, with its environments and its key."""
    vectorized, single = vppo(), vppo(SHARE)
    agents = some_agents()
    envs = vectorized.init_envs(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    weights = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, -1.0, 2.0]])
    separate = []
    for agent in range(AGENTS):
        own = slice(agent, agent + 1)
        share = part(copied(envs), slice(agent * SHARE, (agent + 1) * SHARE))
        separate.append(single.train(part(agents, own), share, weights[own], 2, keys[own], True))
    learned, after, report = vectorized.train(agents, copied(envs), weights, 2, keys, True)
    for agent, (expected, expected_envs, expected_report) in enumerate(separate):
        own = slice(agent, agent + 1)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-3),
            (part(learned, own), part(report, own)),
            (expected, expected_report),
        )
        np.testing.assert_allclose(
            after.state.observation[agent * SHARE : (agent + 1) * SHARE],
            expected_envs.state.observation,
            rtol=1e-2,
            atol=1e-2,
        )
    moved = np.abs(np.asarray(learned.policy.parameters - agents.policy.parameters)).max(axis=1)
    assert (moved > 1e-3).all(), "all agents learned"


def test_an_agents_objective_does_not_affect_other_agents() -> None:
    learner, agents = vppo(), some_agents()
    envs = learner.init_envs(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    weights = jnp.eye(3)
    first, _, _ = learner.train(agents, copied(envs), weights, 1, keys, False)
    changed = weights.at[1].set(jnp.array([-3.0, 1.0, 1.0]))
    second, _, _ = learner.train(agents, copied(envs), changed, 1, keys, False)
    same = np.all(np.asarray(first.policy.parameters == second.policy.parameters), axis=1)
    assert np.array_equal(same, [True, False, True])
    np.testing.assert_array_equal(first.learner.critic[0], second.learner.critic[0])


def collected(learner: VPPO) -> tuple[Agent, Trajectory, Any]:
    agents = part(some_agents(), slice(0, 1))
    keys = jax.random.split(jax.random.key(7), 1)
    _, trajectory = learner.collect(agents, learner.init_envs(jax.random.key(2)), keys)
    return agents, trajectory, keys


@pytest.mark.parametrize("clip_values", [False, True])
def test_an_update_of_one_agent_is_plain_ppo(clip_values: bool) -> None:
    """An update written out for one agent, minibatch by minibatch, with Adam from optax."""
    base = vppo()
    learner = VPPO(base.task, (8,), (8,), replace(CONFIG, clip_values=clip_values, entropy_coefficient=0.01))
    agents, trajectory, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    updated, report, _ = learner.update(agents, trajectory, weights, keys)

    config = learner.config
    policy, critic = part(agents.policy, 0), agents.learner.critic[0]  # type: ignore[arg-type]
    observation, action = policy.normalizer.normalize(trajectory.observation[0]), trajectory.action[0]
    reward = trajectory.rewards[0, :, :, 0]  # the initial standard deviation of the returns is 1
    value = learner.critic(critic, observation)[..., 0]
    last = learner.critic(critic, policy.normalizer.normalize(trajectory.last_observation[0]))[:, 0]
    advantage = advantages(
        reward, value, last, trajectory.terminated[0], trajectory.finished[0], trajectory.truncation_value[0],
        config.gamma, config.gae_lambda,
    )  # fmt: skip
    target = (advantage + value).reshape(-1)
    normal = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).reshape(-1)
    observation, action = observation.reshape(-1, 17), action.reshape(-1, 6)
    old_value, old_density = value.reshape(-1), log_density(trajectory.noise[0], policy.log_std).reshape(-1)
    learned = (policy.parameters, policy.log_std, critic)
    adam = optax.adam(config.learning_rate, eps=1e-5)
    state = adam.init(learned)

    def loss(learned: Any, rows: Any) -> Any:
        actor, log_std, critic = learned
        std = jnp.exp(log_std)
        mean = learner.actor(actor, observation[rows])
        density = jax.scipy.stats.norm.logpdf(action[rows], mean, std).sum(axis=1)
        ratio = jnp.exp(density - old_density[rows])
        surrogate = jnp.minimum(ratio * normal[rows], jnp.clip(ratio, 0.8, 1.2) * normal[rows])
        value = learner.critic(critic, observation[rows])[:, 0]
        error = (value - target[rows]) ** 2
        if clip_values:
            near = jnp.clip(value, old_value[rows] - 0.2, old_value[rows] + 0.2)
            error = jnp.maximum(error, (near - target[rows]) ** 2)
        return -surrogate.mean() + 2.0 * 0.5 * error.mean() - 0.01 * log_std.sum()

    size = len(normal)
    for epoch_key in jax.random.split(keys[0], config.epochs):
        for rows in np.asarray(jax.random.permutation(epoch_key, size)).reshape(config.minibatches, -1):
            gradient = jax.grad(loss)(learned, rows)
            norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in gradient))
            gradient = tuple(leaf * jnp.minimum(1.0, config.max_gradient_norm / norm) for leaf in gradient)
            change, state = adam.update(gradient, state)
            learned = tuple(old + step for old, step in zip(learned, change, strict=True))
    np.testing.assert_allclose(updated.policy.parameters[0], learned[0], atol=2e-4)
    np.testing.assert_allclose(updated.policy.log_std[0], learned[1], atol=2e-4)
    np.testing.assert_allclose(updated.learner.critic[0], learned[2], atol=2e-4)
    assert np.abs(learned[0] - policy.parameters).max() > 1e-3
    assert report.minibatches_used[0] == 1.0


def test_the_kl_limit_ends_an_update() -> None:
    base = vppo()
    agents, trajectory, keys = collected(base)
    learner = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-4))
    updated, report, _ = learner.update(agents, trajectory, jnp.array([[1.0, 0.0, 0.0]]), keys)
    assert 0 < report.minibatches_used[0] < 1
    assert report.kl[0] > 1e-4
    unlimited, _, _ = base.update(agents, trajectory, jnp.array([[1.0, 0.0, 0.0]]), keys)
    near, far = (
        float(jnp.linalg.norm(agent.policy.parameters - agents.policy.parameters))
        for agent in (updated, unlimited)
    )
    assert 0 < near < far


def test_the_learning_rate_falls_after_updates_that_end_early_and_recovers() -> None:
    base = vppo()
    agents, trajectory, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    strict = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-5))
    slower, report, _ = strict.update(agents, trajectory, weights, keys)
    assert report.minibatches_used[0] < 0.5
    assert slower.learner.learning_rate[0] == pytest.approx(0.7 * CONFIG.learning_rate)
    lenient = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e3))
    faster, report, _ = lenient.update(slower, trajectory, weights, keys)
    assert report.minibatches_used[0] == 1
    assert faster.learner.learning_rate[0] == pytest.approx(0.7 * 1.2 * CONFIG.learning_rate)
    highest, _, _ = lenient.update(agents, trajectory, weights, keys)
    assert highest.learner.learning_rate[0] == pytest.approx(CONFIG.learning_rate), "the upper limit"
    constant = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-5, adaptive_learning_rate=False))
    same, _, _ = constant.update(agents, trajectory, weights, keys)
    assert same.learner.learning_rate[0] == pytest.approx(CONFIG.learning_rate)


def test_the_optimizer_state_is_kept_until_it_is_reset() -> None:
    learner, agents = vppo(), some_agents()
    envs = learner.init_envs(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    once, after, _ = learner.train(agents, envs, jnp.eye(3), 1, keys, False)
    counts = [leaf for leaf in jax.tree.leaves(once.learner.optimizer) if leaf.dtype == jnp.int32]
    steps = CONFIG.epochs * CONFIG.minibatches
    np.testing.assert_array_equal(counts[0], [steps] * AGENTS)
    twice, _, _ = learner.train(once, after, jnp.eye(3), 1, keys, False)
    counts = [leaf for leaf in jax.tree.leaves(twice.learner.optimizer) if leaf.dtype == jnp.int32]
    np.testing.assert_array_equal(counts[0], [2 * steps] * AGENTS)
    for leaf in jax.tree.leaves(learner.reset_optimizer(twice).learner.optimizer):
        assert not np.asarray(leaf).any()


def test_fixed_noise_has_no_gradient() -> None:
    base = vppo()
    agents, trajectory, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    fixed = VPPO(base.task, (8,), (8,), replace(CONFIG, std="fixed"))
    still, _, _ = fixed.update(agents, trajectory, weights, keys)
    np.testing.assert_array_equal(still.policy.log_std, agents.policy.log_std)
    assert (still.policy.parameters != agents.policy.parameters).any()
    learned, _, _ = base.update(agents, trajectory, weights, keys)
    assert (learned.policy.log_std != agents.policy.log_std).all()


def test_an_agent_whose_gradient_is_not_finite_is_not_updated_and_counted() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    _, trajectory = learner.collect(agents, learner.init_envs(jax.random.key(2)), keys)
    trajectory = replace(trajectory, rewards=trajectory.rewards.at[1, 0, 0, 0].set(jnp.nan))
    weights = jnp.array([[1.0, 0.0, 0.0]] * AGENTS)
    updated, report, _ = learner.update(agents, trajectory, weights, keys)
    assert list(np.asarray(report.nonfinite) > 0) == [False, True, False]
    np.testing.assert_array_equal(updated.policy.parameters[1], agents.policy.parameters[1])
    assert np.isfinite(updated.policy.parameters).all()
    assert np.isfinite(updated.learner.critic).all()
    assert (updated.policy.parameters[0] != agents.policy.parameters[0]).any()


@settings(max_examples=20)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.integers(0, 2**31))
def test_return_statistics_give_the_std_of_any_weighted_sum(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((3, 3))
    batches = [rng.standard_normal((size, 3)) @ mixing + 5.0 for size in sizes]
    statistics = ReturnStatistics.initial(3)
    for batch in batches:
        statistics = statistics.updated(jnp.asarray(batch, jnp.float32), jnp.ones(len(batch), bool))
    returns, weights = np.concatenate(batches), rng.standard_normal(3)
    np.testing.assert_allclose(statistics.mean, returns.mean(axis=0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(statistics.covariance, np.cov(returns.T, bias=True), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        statistics.std(jnp.asarray(weights, jnp.float32)), (returns @ weights).std(), rtol=1e-2, atol=1e-3
    )


def test_rewards_are_normalized_by_the_std_of_their_returns() -> None:
    """Ten times the reward with ten times the standard deviation gives the same update."""
    learner = vppo()
    agents, trajectory, keys = collected(learner)
    trajectory = replace(trajectory, truncation_value=jnp.zeros_like(trajectory.truncation_value))
    statistics = replace(agents.return_statistics, covariance=100 * agents.return_statistics.covariance)
    scaled = replace(agents, return_statistics=statistics)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    once, _, _ = learner.update(agents, trajectory, weights, keys)
    tenfold = replace(trajectory, rewards=10 * trajectory.rewards)
    again, _, _ = learner.update(scaled, tenfold, weights, keys)
    np.testing.assert_allclose(once.policy.parameters, again.policy.parameters, atol=1e-4)
