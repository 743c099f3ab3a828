from dataclasses import replace
from functools import cache
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

from ppga.learners.vppo import VPPO, Agent, PPOConfig, Returns, Trajectory, Worlds, advantages
from ppga.policies import log_density
from ppga.tasks import make_task

AGENTS, SHARE = 3, 2
CONFIG = PPOConfig(
    environments=AGENTS * SHARE, rollout_length=8, epochs=2, minibatches=4, target_kl=0.0, learning_rate=3e-3
)


@cache
def vppo(environments: int = AGENTS * SHARE) -> VPPO:
    # episodes of five steps, so that time limits and new starts fall inside the rollouts
    task = make_task("halfcheetah", episode_length=5)
    return VPPO(task, (8,), (8,), replace(CONFIG, environments=environments))


def some_agents(count: int = AGENTS) -> Agent:
    learner = vppo()
    policies = jax.vmap(learner.init_policy)(jax.random.split(jax.random.key(0), count))
    skills = jax.vmap(learner.init_skill)(jax.random.split(jax.random.key(1), count))
    returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), Returns.unknown(learner.objectives))
    return Agent(policies, returns, skills)


def part(tree: Any, at: slice) -> Any:
    return jax.tree.map(lambda leaf: leaf[at], tree)


def copied(worlds: Worlds) -> Worlds:
    fresh: Worlds = jax.tree.map(jnp.copy, worlds)
    return fresh


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_those_of_a_slow_reference(seed: int, discount: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(seed)
    e, t = 3, 7
    rewards, values, final_value = rng.standard_normal((3, e, t))
    last_value = rng.standard_normal(e)
    terminated = rng.uniform(size=(e, t)) < 0.2
    truncated = (rng.uniform(size=(e, t)) < 0.2) & ~terminated
    final_value = np.where(truncated, final_value, 0.0)
    expected = np.zeros((e, t))
    for i in range(e):
        for start in range(t):
            weight = 1.0
            for j in range(start, t):
                if terminated[i, j]:
                    following = 0.0
                elif truncated[i, j]:
                    following = final_value[i, j]
                else:
                    following = values[i, j + 1] if j + 1 < t else last_value[i]
                expected[i, start] += weight * (rewards[i, j] + discount * following - values[i, j])
                if terminated[i, j] or truncated[i, j]:
                    break
                weight *= discount * gae_lambda
    computed = advantages(
        jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(last_value), jnp.asarray(terminated),
        jnp.asarray(terminated | truncated), jnp.asarray(final_value), discount, gae_lambda,
    )  # fmt: skip
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-4)


def test_a_rollout_records_what_happened() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    start = learner.init_worlds(jax.random.key(2))
    worlds, seen = learner.collect(agents, copied(start), keys)
    assert seen.observation.shape == (AGENTS, SHARE, 8, 17)
    np.testing.assert_array_equal(seen.observation[:, :, 0].reshape(-1, 17), start.state.observation)
    np.testing.assert_array_equal(seen.last_observation.reshape(-1, 17), worlds.state.observation)
    assert np.asarray(seen.finished).sum() == AGENTS * SHARE, "an episode of five steps ends once in eight"
    assert np.asarray(seen.finished)[:, :, 4].all()
    assert not np.asarray(seen.terminated).any(), "a time limit is not a failure"
    assert (np.asarray(seen.final_value) != 0).sum() == AGENTS * SHARE
    for agent in range(AGENTS):
        policy = part(agents.policy, agent)  # type: ignore[arg-type]
        mean = policy.mean_action(learner.actor, seen.observation[agent])
        std = np.exp(policy.log_std)
        np.testing.assert_allclose(seen.action[agent], mean + std * seen.noise[agent], atol=1e-5)
    rewards = np.asarray(seen.rewards)
    running = np.zeros(rewards.shape[:2] + rewards.shape[3:])
    for t in range(8):
        running = CONFIG.discount * running + rewards[:, :, t]
        np.testing.assert_allclose(seen.returns[:, :, t], running, rtol=1e-4, atol=1e-4)
        running *= ~np.asarray(seen.finished)[:, :, t, None]


def test_the_value_after_a_time_limit_is_that_of_the_last_observation_before_the_new_start() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    start = learner.init_worlds(jax.random.key(2))
    _, seen = learner.collect(agents, copied(start), keys)
    state, step = start.state, jax.jit(learner.task.step)
    for t in range(5):
        state = step(state, seen.action[:, :, t].reshape(AGENTS * SHARE, -1))
    assert np.asarray(state.truncated).all()
    for agent in range(AGENTS):
        one = part(agents, agent)  # type: ignore[arg-type]
        last = state.observation.reshape(AGENTS, SHARE, -1)[agent]
        expected = learner.critic(one.skill.critic, one.policy.observation.normalise(last))[:, 0]
        np.testing.assert_allclose(seen.final_value[agent, :, 4], expected, atol=1e-4)


def test_many_agents_are_as_many_separate_runs() -> None:
    """Agent i of VPPO does what a run with that agent alone, its environments and its key does."""
    together, alone = vppo(), vppo(SHARE)
    agents = some_agents()
    worlds = together.init_worlds(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    weights = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, -1.0, 2.0]])
    separate = []
    for agent in range(AGENTS):
        mine = slice(agent, agent + 1)
        share = part(copied(worlds), slice(agent * SHARE, (agent + 1) * SHARE))
        separate.append(alone.train(part(agents, mine), share, weights[mine], 2, keys[mine], True))
    learnt, after, report = together.train(agents, copied(worlds), weights, 2, keys, True)
    for agent, (one, world, its_report) in enumerate(separate):
        mine = slice(agent, agent + 1)
        for ours, theirs in zip(
            jax.tree.leaves((part(learnt, mine), part(report, mine))),
            jax.tree.leaves((one, its_report)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(
            after.state.observation[agent * SHARE : (agent + 1) * SHARE],
            world.state.observation,
            rtol=1e-2,
            atol=1e-2,
        )
    moved = np.abs(np.asarray(learnt.policy.parameters - agents.policy.parameters)).max(axis=1)
    assert (moved > 1e-3).all(), "all of them learnt"


def test_one_agents_objective_does_not_touch_another() -> None:
    learner, agents = vppo(), some_agents()
    worlds = learner.init_worlds(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    weights = jnp.eye(3)
    first, _, _ = learner.train(agents, copied(worlds), weights, 1, keys, False)
    other = weights.at[1].set(jnp.array([-3.0, 1.0, 1.0]))
    second, _, _ = learner.train(agents, copied(worlds), other, 1, keys, False)
    same = np.all(np.asarray(first.policy.parameters == second.policy.parameters), axis=1)
    assert np.array_equal(same, [True, False, True])
    np.testing.assert_array_equal(first.skill.critic[0], second.skill.critic[0])


def collected(learner: VPPO) -> tuple[Agent, Trajectory, Any]:
    agents = part(some_agents(), slice(0, 1))
    keys = jax.random.split(jax.random.key(7), 1)
    _, seen = learner.collect(agents, learner.init_worlds(jax.random.key(2)), keys)
    return agents, seen, keys


@pytest.mark.parametrize("clip_values", [False, True])
def test_with_one_agent_it_is_plain_ppo(clip_values: bool) -> None:
    """An update written out for one agent, minibatch by minibatch, with optax' Adam."""
    base = vppo()
    learner = VPPO(base.task, (8,), (8,), replace(CONFIG, clip_values=clip_values, entropy_coefficient=0.01))
    agents, seen, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    updated, report, _ = learner.update(agents, seen, weights, keys)

    config = learner.config
    policy, critic = part(agents.policy, 0), agents.skill.critic[0]  # type: ignore[arg-type]
    observation, action = policy.observation.normalise(seen.observation[0]), seen.action[0]
    reward = seen.rewards[0, :, :, 0]  # the normaliser knows nothing yet: spread 1
    value = learner.critic(critic, observation)[..., 0]
    last = learner.critic(critic, policy.observation.normalise(seen.last_observation[0]))[:, 0]
    advantage = advantages(
        reward, value, last, seen.terminated[0], seen.finished[0], seen.final_value[0], config.discount,
        config.gae_lambda,
    )  # fmt: skip
    target = (advantage + value).reshape(-1)
    normal = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).reshape(-1)
    observation, action = observation.reshape(-1, 17), action.reshape(-1, 6)
    old_value, old_density = value.reshape(-1), log_density(seen.noise[0], policy.log_std).reshape(-1)
    learnt = (policy.parameters, policy.log_std, critic)
    adam = optax.adam(config.learning_rate, eps=1e-5)
    state = adam.init(learnt)

    def loss(learnt: Any, rows: Any) -> Any:
        actor, log_std, critic = learnt
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
            gradient = jax.grad(loss)(learnt, rows)
            norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in gradient))
            gradient = tuple(leaf * jnp.minimum(1.0, config.gradient_norm / norm) for leaf in gradient)
            change, state = adam.update(gradient, state)
            learnt = tuple(old + step for old, step in zip(learnt, change, strict=True))
    np.testing.assert_allclose(updated.policy.parameters[0], learnt[0], atol=2e-4)
    np.testing.assert_allclose(updated.policy.log_std[0], learnt[1], atol=2e-4)
    np.testing.assert_allclose(updated.skill.critic[0], learnt[2], atol=2e-4)
    assert np.abs(learnt[0] - policy.parameters).max() > 1e-3
    assert report.used[0] == 1.0


def test_the_kl_limit_ends_an_update() -> None:
    base = vppo()
    agents, seen, keys = collected(base)
    learner = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-4))
    updated, report, _ = learner.update(agents, seen, jnp.array([[1.0, 0.0, 0.0]]), keys)
    assert 0 < report.used[0] < 1
    assert report.kl[0] > 1e-4
    free, _, _ = base.update(agents, seen, jnp.array([[1.0, 0.0, 0.0]]), keys)
    near, far = (
        float(jnp.linalg.norm(agent.policy.parameters - agents.policy.parameters))
        for agent in (updated, free)
    )
    assert 0 < near < far


def test_an_agent_that_moves_too_fast_slows_down_and_recovers() -> None:
    base = vppo()
    agents, seen, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    hasty = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-5))
    slower, report, _ = hasty.update(agents, seen, weights, keys)
    assert report.used[0] < 0.5
    assert slower.skill.rate[0] == pytest.approx(0.7 * CONFIG.learning_rate)
    calm = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e3))
    faster, report, _ = calm.update(slower, seen, weights, keys)
    assert report.used[0] == 1
    assert faster.skill.rate[0] == pytest.approx(0.7 * 1.2 * CONFIG.learning_rate)
    top, _, _ = calm.update(agents, seen, weights, keys)
    assert top.skill.rate[0] == pytest.approx(CONFIG.learning_rate), "never faster than it was told"
    steady = VPPO(base.task, (8,), (8,), replace(CONFIG, target_kl=1e-5, adapt_rate=False))
    assert steady.update(agents, seen, weights, keys)[0].skill.rate[0] == pytest.approx(CONFIG.learning_rate)


def test_adam_remembers_unless_told_to_forget() -> None:
    learner, agents = vppo(), some_agents()
    worlds = learner.init_worlds(jax.random.key(2))
    keys = jax.random.split(jax.random.key(3), AGENTS)
    once, after, _ = learner.train(agents, worlds, jnp.eye(3), 1, keys, False)
    counts = [leaf for leaf in jax.tree.leaves(once.skill.adam) if leaf.dtype == jnp.int32]
    steps = CONFIG.epochs * CONFIG.minibatches
    np.testing.assert_array_equal(counts[0], [steps] * AGENTS)
    twice, _, _ = learner.train(once, after, jnp.eye(3), 1, keys, False)
    counts = [leaf for leaf in jax.tree.leaves(twice.skill.adam) if leaf.dtype == jnp.int32]
    np.testing.assert_array_equal(counts[0], [2 * steps] * AGENTS)
    for leaf in jax.tree.leaves(learner.forget(twice).skill.adam):
        assert not np.asarray(leaf).any()


def test_fixed_noise_has_no_gradient() -> None:
    base = vppo()
    agents, seen, keys = collected(base)
    weights = jnp.array([[1.0, 0.0, 0.0]])
    fixed = VPPO(base.task, (8,), (8,), replace(CONFIG, std="fixed"))
    still, _, _ = fixed.update(agents, seen, weights, keys)
    np.testing.assert_array_equal(still.policy.log_std, agents.policy.log_std)
    assert (still.policy.parameters != agents.policy.parameters).any()
    learnt, _, _ = base.update(agents, seen, weights, keys)
    assert (learnt.policy.log_std != agents.policy.log_std).all()


def test_an_agent_whose_gradient_is_not_finite_stands_still_and_is_counted() -> None:
    learner, agents = vppo(), some_agents()
    keys = jax.random.split(jax.random.key(5), AGENTS)
    _, seen = learner.collect(agents, learner.init_worlds(jax.random.key(2)), keys)
    seen = replace(seen, rewards=seen.rewards.at[1, 0, 0, 0].set(jnp.nan))
    weights = jnp.array([[1.0, 0.0, 0.0]] * AGENTS)
    updated, report, _ = learner.update(agents, seen, weights, keys)
    assert list(np.asarray(report.nonfinite) > 0) == [False, True, False]
    np.testing.assert_array_equal(updated.policy.parameters[1], agents.policy.parameters[1])
    assert np.isfinite(updated.policy.parameters).all()
    assert np.isfinite(updated.skill.critic).all()
    assert (updated.policy.parameters[0] != agents.policy.parameters[0]).any()


@settings(max_examples=20)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.integers(0, 2**31))
def test_the_spread_of_any_weighted_return_is_known(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((3, 3))
    batches = [rng.standard_normal((size, 3)) @ mixing + 5.0 for size in sizes]
    returns = Returns.unknown(3)
    for batch in batches:
        returns = returns.updated(jnp.asarray(batch, jnp.float32), jnp.ones(len(batch), bool))
    seen, weights = np.concatenate(batches), rng.standard_normal(3)
    np.testing.assert_allclose(returns.mean, seen.mean(axis=0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(returns.covariance, np.cov(seen.T, bias=True), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        returns.spread(jnp.asarray(weights, jnp.float32)), (seen @ weights).std(), rtol=1e-2, atol=1e-3
    )


def test_rewards_are_learnt_from_in_units_of_their_spread() -> None:
    """Ten times the reward with ten times the spread is the same problem."""
    learner = vppo()
    agents, seen, keys = collected(learner)
    seen = replace(seen, final_value=jnp.zeros_like(seen.final_value))
    tenfold = replace(agents, returns=replace(agents.returns, covariance=100 * agents.returns.covariance))
    weights = jnp.array([[1.0, 0.0, 0.0]])
    once, _, _ = learner.update(agents, seen, weights, keys)
    louder = replace(seen, rewards=10 * seen.rewards)
    again, _, _ = learner.update(tenfold, louder, weights, keys)
    np.testing.assert_allclose(once.policy.parameters, again.policy.parameters, atol=1e-4)
