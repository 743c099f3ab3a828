"""SAC: by hand, against slow versions, and on a small problem whose best policy is known."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.learners.sac import SAC, SACConfig
from ppga.learners.td3 import Batch

from helpers.off_policy import LAYOUT, LINE, best_line_return, line_batches, line_return, random_rows


def test_sac_learns_to_move_a_point_to_the_middle() -> None:
    """Two agents with hyperparameters of their own; one of them hardly learns."""
    sac = SAC(LINE, (16,), (32, 32), SACConfig())
    agents = jax.vmap(sac.init)(jax.random.split(jax.random.key(0), 2))
    hyper = jnp.array([[3e-3, 3e-3, 3e-3, 0.9, 5.0], [1e-7, 1e-7, 1e-7, 0.9, 5.0]])
    agents = replace(agents, hyper=hyper)
    rows = line_batches(2, 1500, 64)
    trained, losses = sac.train(agents, rows, jax.random.split(jax.random.key(1), 2))
    assert np.isfinite(np.asarray(losses)).all()
    assert line_return(sac.actor, trained.actor[0]) > best_line_return() - 0.15
    np.testing.assert_allclose(trained.actor[1], agents.actor[1], atol=1e-3)
    assert float(trained.log_temperature[0]) < -1, "less noise than in the beginning"


def test_log_densities_of_actions_equal_a_change_of_variables() -> None:
    """By the change of variables a = tanh(x), in float64."""
    sac = SAC(LAYOUT, (4,), (4,), SACConfig())
    actor = 0.3 * jax.random.normal(jax.random.key(0), (sac.actor.parameters,))
    observation = jax.random.normal(jax.random.key(1), (200, 2))
    sampled, density = sac.act(actor, observation, jax.random.key(2))
    mean, log_std = np.split(np.asarray(sac.actor.raw(actor, observation), np.float64), 2, axis=1)
    std = np.exp(np.clip(log_std, -5, 2))
    action = np.asarray(sampled, np.float64)
    inner = np.abs(action[:, 0]) < 0.99  # beyond, float32 cannot be inverted
    gaussian = np.arctanh(action[inner])
    normal = np.exp(-0.5 * ((gaussian - mean[inner]) / std[inner]) ** 2) / (std[inner] * np.sqrt(2 * np.pi))
    expected = np.log(normal / (1 - action[inner] ** 2)).sum(axis=1)
    assert inner.sum() > 100
    np.testing.assert_allclose(np.asarray(density)[inner], expected, rtol=1e-2, atol=1e-2)


def test_td_targets_equal_their_equation_and_the_temperature_follows_the_entropy() -> None:
    sac = SAC(LAYOUT, (4,), (), SACConfig(tau=0.25))
    agent = sac.init(jax.random.key(0))
    agent = replace(
        agent,
        target=jnp.array([[1.0, 2.0, 3.0, 0.5], [-1.0, 0.0, 4.0, 0.0]]),
        log_temperature=jnp.float32(np.log(0.2)),
        hyper=jnp.array([1e-3, 1e-3, 1e-2, 0.8, 3.0]),
    )
    batch: Batch = LAYOUT.split(random_rows(40))
    td_target = np.asarray(sac.td_target(agent, batch, jax.random.key(5)))
    next_action, density = sac.act(agent.actor, batch.next_observation, jax.random.key(5))
    after, action = np.asarray(batch.next_observation), np.asarray(next_action)[:, 0]
    smaller = np.minimum(after @ [1.0, 2.0] + 3.0 * action + 0.5, after @ [-1.0, 0.0] + 4.0 * action)
    soft_value = (1 - np.asarray(batch.terminated)) * (smaller - 0.2 * np.asarray(density))
    expected = 3.0 * np.asarray(batch.gains)[:, 0] + 0.8 * soft_value
    np.testing.assert_allclose(td_target, expected, rtol=1e-4, atol=1e-4)
    stepped, _ = sac.step(agent, batch, jax.random.key(6))
    _, act_key = jax.random.split(jax.random.key(6))
    entropy = -float(sac.act(agent.actor, batch.observation, act_key)[1].mean())
    change = float(stepped.log_temperature - agent.log_temperature)
    target_entropy = -1.0  # minus one for each action
    assert change == pytest.approx(1e-2 * np.sign(target_entropy - entropy), rel=1e-3)
    np.testing.assert_allclose(stepped.target, 0.75 * agent.target + 0.25 * stepped.critics, rtol=1e-5)


@pytest.mark.parametrize("uniform", [True, False])
def test_hyperparameters_are_spread_over_their_ranges(uniform: bool) -> None:
    """The share of draws below the middle of a range, on the scale of the draws, is a half."""
    config = SACConfig(learning_rates=(1e-4, 1e-2), gammas=(0.9, 0.99), reward_scales=(0.5, 2.0))
    sac = SAC(LAYOUT, (4,), (4,), replace(config, uniform=uniform))
    draws = np.asarray(jax.vmap(sac.draw_hyper)(jax.random.split(jax.random.key(1), 2000)))
    pairs = [config.learning_rates] * 3 + [config.gammas, config.reward_scales]
    for number, (low, high) in enumerate(pairs):
        middle = (low + high) / 2 if uniform or number == 3 else np.sqrt(low * high)
        assert (draws[:, number] < middle).mean() == pytest.approx(0.5, abs=0.05)


def test_hyperparameters_lie_in_their_ranges() -> None:
    config = SACConfig(learning_rates=(1e-4, 1e-2), gammas=(0.9, 0.99), reward_scales=(0.5, 2.0))
    sac = SAC(LAYOUT, (4,), (4,), config)
    samples = np.asarray(jax.vmap(sac.draw_hyper)(jax.random.split(jax.random.key(0), 500)))
    for columns, (low, high) in (
        (slice(0, 3), config.learning_rates),
        (3, config.gammas),
        (4, config.reward_scales),
    ):
        assert low <= samples[:, columns].min() < low + 0.1 * (high - low)
        assert high >= samples[:, columns].max() > high - 0.1 * (high - low)
    # uniform in the logarithm: half of the learning rates are below the geometric mean
    assert np.mean(samples[:, :3] < 1e-3) == pytest.approx(0.5, abs=0.05)
