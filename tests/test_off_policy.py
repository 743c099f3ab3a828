"""TD3 and SAC: by hand, against slow versions, and on a small problem whose best policy is known."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.learners.sac import SAC, SACConfig
from ppga.learners.td3 import TD3, Batch, Layout, TD3Config
from ppga.networks import Network
from ppga.physics import Array
from ppga.rollouts import Transitions

LAYOUT = Layout(observation=2, action=1, gains=2)
CONFIG = TD3Config(batch=16, discount=0.9, tau=0.25, critic_rate=0.01, actor_rate=0.02, policy_rate=0.03)


def linear(config: TD3Config = CONFIG) -> TD3:
    """Actor and critics without hidden layers: Q = q [s, a] + b."""
    return TD3(LAYOUT, Network((2, 1), head="tanh"), (), config)


def some_rows(*shape: int, seed: int = 0) -> Array:
    draws = np.random.default_rng(seed)
    rows = draws.normal(size=(*shape, LAYOUT.width)).astype(np.float32)
    rows[..., 2] = np.tanh(rows[..., 2])  # actions
    rows[..., 5] = rows[..., 5] > 0.8  # terminated
    return jnp.asarray(rows)


def test_rows_hold_what_was_lived() -> None:
    draws = np.random.default_rng(0)
    n, t = 3, 4
    lived = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    parts: dict[str, Any] = {
        "observation": draws.normal(size=(n, t, 2)),
        "action": draws.normal(size=(n, t, 1)),
        "reward": draws.normal(size=(n, t)),
        "proxies": draws.normal(size=(n, t, 1)),
        "terminated": draws.random((n, t)) > 0.5,
        "next_observation": draws.normal(size=(n, t, 2)),
        "active": np.ones_like(lived),
        "lived": lived,
    }
    film = Transitions(**parts)
    rows = LAYOUT.rows(film)
    assert rows.shape == (7, LAYOUT.width)
    batch = LAYOUT.split(jnp.asarray(rows))
    for number, (i, j) in enumerate(zip(*np.nonzero(lived), strict=True)):
        for name in ("observation", "action", "next_observation", "terminated"):
            np.testing.assert_allclose(getattr(batch, name)[number], getattr(film, name)[i, j], rtol=1e-6)
        np.testing.assert_allclose(batch.gains[number], [film.reward[i, j], *film.proxies[i, j]], rtol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 100.0])
def test_td3_aims_at_the_smaller_target_critic_with_clipped_noise(noise: float) -> None:
    """With noise that is far beyond its bound, every draw is at one of the bounds."""
    td3 = linear(replace(CONFIG, noise=noise, noise_clip=0.5))
    critics = replace(
        td3.init_critics(jax.random.key(0)), target=jnp.array([[1.0, 2.0, 3.0, 0.5], [-1.0, 0.0, 4.0, 0.0]])
    )
    actor = replace(td3.init_actor(jnp.zeros(3)), target=jnp.array([0.3, -0.2, 0.1]))
    batch = LAYOUT.split(some_rows(50))
    weights, key = jnp.array([1.0, -2.0]), jax.random.key(3)
    aim = np.asarray(td3.aim(critics, actor, batch, weights, key))
    sign = np.sign(np.asarray(jax.random.normal(key, (50, 1))))[:, 0] if noise else np.zeros(50)
    after = np.asarray(batch.next_observation)
    action = np.clip(np.tanh(after @ [0.3, -0.2] + 0.1) + 0.5 * sign, -1, 1)
    first = after @ [1.0, 2.0] + 3.0 * action + 0.5
    second = after @ [-1.0, 0.0] + 4.0 * action
    gained = np.asarray(batch.gains) @ [1.0, -2.0]
    expected = gained + 0.9 * (1 - np.asarray(batch.terminated)) * np.minimum(first, second)
    np.testing.assert_allclose(aim, expected, rtol=1e-4, atol=1e-4)
    assert np.asarray(batch.terminated).any()


def test_a_critic_step_is_adam_on_the_squared_errors() -> None:
    """Adam's first step is the sign of the gradient, which is worked out by hand."""
    td3 = linear()
    critics, actor = td3.init_critics(jax.random.key(0)), td3.init_actor(jnp.array([0.1, 0.2, 0.0]))
    batch, weights, key = LAYOUT.split(some_rows(30)), jnp.array([1.0, 0.0]), jax.random.key(1)
    after, loss = td3.critic_step(critics, actor, batch, weights, key)
    aim = np.asarray(td3.aim(critics, actor, batch, weights, key))
    inputs = np.concatenate([batch.observation, batch.action, np.ones((30, 1))], axis=1)
    errors = inputs @ np.asarray(critics.parameters).T - aim[:, None]  # (n, 2)
    assert float(loss) == pytest.approx(np.square(errors).mean(axis=0).sum(), rel=1e-4)
    gradient = 2 * errors.T @ inputs / 30
    change = np.asarray(after.parameters - critics.parameters)
    np.testing.assert_allclose(change, -CONFIG.critic_rate * np.sign(gradient), rtol=1e-3)
    np.testing.assert_array_equal(after.target, critics.target)


def test_the_actor_climbs_the_first_critic_and_targets_follow() -> None:
    td3 = linear()
    critics = replace(
        td3.init_critics(jax.random.key(0)),
        parameters=jnp.array([[1.0, 2.0, -3.0, 0.5], [9.0, 9.0, 9.0, 9.0]]),
        target=jnp.zeros((2, 4)),
    )
    actor = td3.init_actor(jnp.array([0.3, -0.2, 0.1]))
    seen = LAYOUT.split(some_rows(30)).observation
    critics_after, actor_after = td3.delayed_step(critics, actor, seen)
    # dQ/da = -3, da/dtheta = (1 - tanh^2) [s, 1]
    slope = 1 - np.tanh(np.asarray(seen) @ [0.3, -0.2] + 0.1) ** 2
    gradient = (-3.0 * slope[:, None] * np.concatenate([seen, np.ones((30, 1))], axis=1)).mean(axis=0)
    np.testing.assert_allclose(td3.gradient(actor.parameters, critics, seen), gradient, rtol=1e-4)
    change = np.asarray(actor_after.parameters - actor.parameters)
    np.testing.assert_allclose(change, CONFIG.actor_rate * np.sign(gradient), rtol=1e-3)
    np.testing.assert_allclose(critics_after.target, 0.25 * critics.parameters)
    expected = 0.75 * actor.target + 0.25 * actor_after.parameters
    np.testing.assert_allclose(actor_after.target, expected, rtol=1e-6)


def test_training_is_its_steps_in_turn_and_learners_do_not_meet() -> None:
    """Three learners at once; and each by itself, step by step, the actor every other one."""
    td3 = TD3(LAYOUT, Network((2, 4, 1), head="tanh"), (5,), CONFIG)
    critic_keys, keys = jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.key(1), 3)
    critics = jax.vmap(td3.init_critics)(critic_keys)
    start = jax.random.normal(jax.random.key(2), (3, td3.actor.parameters))
    actors = jax.vmap(td3.init_actor)(start)
    weights = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])
    rows = some_rows(6, 16)
    trained, acting, losses = td3.train(critics, actors, rows, weights, keys)
    for learner in range(3):
        one, actor = jax.tree.map(lambda leaf, learner=learner: leaf[learner], (critics, actors))
        errors = []
        for number in range(6):
            now = jax.random.fold_in(keys[learner], number)
            batch = LAYOUT.split(rows[number])
            one, error = td3.critic_step(one, actor, batch, weights[learner], now)
            errors.append(float(error))
            if number % CONFIG.delay == CONFIG.delay - 1:
                one, actor = td3.delayed_step(one, actor, batch.observation)
        np.testing.assert_allclose(trained.parameters[learner], one.parameters, atol=1e-5)
        np.testing.assert_allclose(trained.target[learner], one.target, atol=1e-5)
        np.testing.assert_allclose(acting.parameters[learner], actor.parameters, atol=1e-5)
        np.testing.assert_allclose(acting.target[learner], actor.target, atol=1e-5)
        assert float(losses[learner]) == pytest.approx(np.mean(errors), rel=1e-4)


def test_climbing_raises_what_each_policys_own_critic_expects() -> None:
    td3 = TD3(LAYOUT, Network((2, 4, 1), head="tanh"), (5,), CONFIG)
    critics = jax.vmap(td3.init_critics)(jax.random.split(jax.random.key(0), 2))
    policies = jax.random.normal(jax.random.key(2), (2, td3.actor.parameters))
    rows = some_rows(20, 64)
    climbed = td3.climb(policies, critics, rows)
    seen = LAYOUT.split(rows[0]).observation
    for number in range(2):
        critic = critics.parameters[number, 0]

        def expected(parameters: Array, critic: Array = critic) -> float:
            return float(td3.twins.value(critic, seen, td3.actor(parameters, seen)).mean())

        assert expected(climbed[number]) > expected(policies[number]) + 1e-3


# A point on a line, to be brought to the middle: x' = clip(x + 0.3 a), the reward is -x'^2.

REACH = 0.3
LINE = Layout(observation=1, action=1, gains=1)


def onwards(place: Array, action: Array) -> Array:
    return jnp.clip(place + REACH * jnp.clip(action, -1, 1), -1, 1)


def line_rows(n: int) -> Array:
    """Experience of acting at random."""
    place = jax.random.uniform(jax.random.key(0), (n, 1), minval=-1)
    action = jax.random.uniform(jax.random.key(1), (n, 1), minval=-1)
    after = onwards(place, action)
    return jnp.concatenate([place, action, after, jnp.zeros((n, 1)), -(after**2)], axis=1)


def gained(actor: Network, parameters: Array) -> float:
    """Mean return of eight steps, from everywhere."""
    place, total = jnp.linspace(-1, 1, 41)[:, None], 0.0
    for _ in range(8):
        place = onwards(place, actor(parameters, place))
        total += float(-(place**2).mean())
    return total


def best_possible() -> float:
    place, total = np.linspace(-1, 1, 41), 0.0
    for _ in range(8):
        place = place - np.clip(place, -REACH, REACH)
        total += float(-np.square(place).mean())
    return total


def batches(steps: int, size: int, lead: tuple[int, ...] = ()) -> Array:
    rows = line_rows(4000)
    return rows[np.random.default_rng(2).integers(0, 4000, (*lead, steps, size))]


def test_td3_learns_to_bring_a_point_to_the_middle() -> None:
    config = TD3Config(discount=0.9, critic_rate=3e-3, actor_rate=3e-3)
    td3 = TD3(LINE, Network((1, 16, 1), head="tanh"), (32, 32), config)
    critics = jax.vmap(td3.init_critics)(jax.random.key(0)[None])
    start = 0.1 * jax.random.normal(jax.random.key(3), (1, td3.actor.parameters))
    actors = jax.vmap(td3.init_actor)(start)
    idle = gained(td3.actor, actors.parameters[0])
    _, actors, _ = td3.train(critics, actors, batches(1500, 64), jnp.ones((1, 1)), jax.random.key(1)[None])
    assert idle < best_possible() - 1.5
    assert gained(td3.actor, actors.parameters[0]) > best_possible() - 0.15


def test_sac_learns_to_bring_a_point_to_the_middle() -> None:
    """Two agents with hyperparameters of their own; the one that hardly learns stays behind."""
    sac = SAC(LINE, (16,), (32, 32), SACConfig(population=2))
    agents = jax.vmap(sac.init)(jax.random.split(jax.random.key(0), 2))
    hyper = jnp.array([[3e-3, 3e-3, 3e-3, 0.9, 5.0], [1e-7, 1e-7, 1e-7, 0.9, 5.0]])
    agents = replace(agents, hyper=hyper)
    rows = batches(1500, 64, (2,))
    trained, losses = sac.train(agents, rows, jax.random.split(jax.random.key(1), 2))
    assert np.isfinite(np.asarray(losses)).all()
    assert gained(sac.actor, trained.actor[0]) > best_possible() - 0.15
    np.testing.assert_allclose(trained.actor[1], agents.actor[1], atol=1e-3)
    assert float(trained.log_temperature[0]) < -1, "less noise than at first"


def test_sac_knows_how_likely_its_actions_are() -> None:
    """By the change of variables a = tanh(x), in float64."""
    sac = SAC(LAYOUT, (4,), (4,), SACConfig())
    actor = 0.3 * jax.random.normal(jax.random.key(0), (sac.actor.parameters,))
    seen = jax.random.normal(jax.random.key(1), (200, 2))
    action, density = sac.act(actor, seen, jax.random.key(2))
    mean, width = np.split(np.asarray(sac.actor.raw(actor, seen), np.float64), 2, axis=1)
    std = np.exp(np.clip(width, -5, 2))
    acted = np.asarray(action, np.float64)
    inner = np.abs(acted[:, 0]) < 0.99  # beyond, float32 cannot be turned back
    before = np.arctanh(acted[inner])
    normal = np.exp(-0.5 * ((before - mean[inner]) / std[inner]) ** 2) / (std[inner] * np.sqrt(2 * np.pi))
    expected = np.log(normal / (1 - acted[inner] ** 2)).sum(axis=1)
    assert inner.sum() > 100
    np.testing.assert_allclose(np.asarray(density)[inner], expected, rtol=1e-2, atol=1e-2)


def test_sac_aims_as_its_equation_says_and_temperature_follows_entropy() -> None:
    sac = SAC(LAYOUT, (4,), (), SACConfig(tau=0.25))
    agent = sac.init(jax.random.key(0))
    agent = replace(
        agent,
        target=jnp.array([[1.0, 2.0, 3.0, 0.5], [-1.0, 0.0, 4.0, 0.0]]),
        log_temperature=jnp.float32(np.log(0.2)),
        hyper=jnp.array([1e-3, 1e-3, 1e-2, 0.8, 3.0]),
    )
    batch: Batch = LAYOUT.split(some_rows(40))
    aim = np.asarray(sac.aim(agent, batch, jax.random.key(5)))
    action, density = sac.act(agent.actor, batch.next_observation, jax.random.key(5))
    after, acted = np.asarray(batch.next_observation), np.asarray(action)[:, 0]
    smaller = np.minimum(after @ [1.0, 2.0] + 3.0 * acted + 0.5, after @ [-1.0, 0.0] + 4.0 * acted)
    follows = (1 - np.asarray(batch.terminated)) * (smaller - 0.2 * np.asarray(density))
    np.testing.assert_allclose(aim, 3.0 * np.asarray(batch.gains)[:, 0] + 0.8 * follows, rtol=1e-4, atol=1e-4)
    stepped, _ = sac.step(agent, batch, jax.random.key(6))
    _, act_key = jax.random.split(jax.random.key(6))
    entropy = -float(sac.act(agent.actor, batch.observation, act_key)[1].mean())
    moved = float(stepped.log_temperature - agent.log_temperature)
    assert moved == pytest.approx(1e-2 * np.sign(-1.0 - entropy), rel=1e-3), (
        "wanted: minus one for each action"
    )
    np.testing.assert_allclose(stepped.target, 0.75 * agent.target + 0.25 * stepped.critics, rtol=1e-5)


def test_hyperparameters_lie_in_their_ranges() -> None:
    config = SACConfig(rates=(1e-4, 1e-2), discounts=(0.9, 0.99), reward_scales=(0.5, 2.0))
    sac = SAC(LAYOUT, (4,), (4,), config)
    drawn = np.asarray(jax.vmap(sac.draw_hyper)(jax.random.split(jax.random.key(0), 500)))
    for columns, (low, high) in (
        (slice(0, 3), config.rates),
        (3, config.discounts),
        (4, config.reward_scales),
    ):
        assert low <= drawn[:, columns].min() < low + 0.1 * (high - low)
        assert high >= drawn[:, columns].max() > high - 0.1 * (high - low)
    # evenly in the logarithm: half of the rates are below the geometric mean
    assert np.mean(drawn[:, :3] < 1e-3) == pytest.approx(0.5, abs=0.05)
