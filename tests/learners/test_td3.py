"""TD3: by hand, against a slow loop, and on a small problem whose best policy is known."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ppga.learners.td3 import TD3, TD3Config
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.rollouts import Transitions

from helpers.off_policy import LAYOUT, LINE, best_line_return, line_batches, line_return, random_rows

CONFIG = TD3Config(
    batch_size=16, gamma=0.9, tau=0.25, critic_learning_rate=0.01, actor_learning_rate=0.02,
    policy_learning_rate=0.03,
)  # fmt: skip


def linear(config: TD3Config = CONFIG) -> TD3:
    """Actor and critics without hidden layers: Q = q [s, a] + b."""
    return TD3(LAYOUT, Network((2, 1), head="tanh"), (), config)


def test_rows_hold_the_steps_that_were_taken() -> None:
    rng = np.random.default_rng(0)
    n, t = 3, 4
    taken = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    parts: dict[str, Any] = {
        "observation": rng.normal(size=(n, t, 2)),
        "action": rng.normal(size=(n, t, 1)),
        "reward": rng.normal(size=(n, t)),
        "proxies": rng.normal(size=(n, t, 1)),
        "terminated": rng.random((n, t)) > 0.5,
        "next_observation": rng.normal(size=(n, t, 2)),
        "active": np.ones_like(taken),
        "taken": taken,
    }
    transitions = Transitions(**parts)
    rows = LAYOUT.rows(transitions)
    assert rows.shape == (7, LAYOUT.width)
    batch = LAYOUT.split(jnp.asarray(rows))
    for number, (i, j) in enumerate(zip(*np.nonzero(taken), strict=True)):
        for name in ("observation", "action", "next_observation", "terminated"):
            expected = getattr(transitions, name)[i, j]
            np.testing.assert_allclose(getattr(batch, name)[number], expected, rtol=1e-6)
        gains = [transitions.reward[i, j], *transitions.proxies[i, j]]
        np.testing.assert_allclose(batch.gains[number], gains, rtol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 100.0])
def test_td_targets_use_the_smaller_target_critic_and_clipped_noise(noise: float) -> None:
    """With noise that is far beyond its bound, every sample is at one of the bounds."""
    td3 = linear(replace(CONFIG, target_noise=noise, target_noise_clip=0.5))
    critics = replace(
        td3.init_critics(jax.random.key(0)), target=jnp.array([[1.0, 2.0, 3.0, 0.5], [-1.0, 0.0, 4.0, 0.0]])
    )
    actor = replace(td3.init_actor(jnp.zeros(3)), target=jnp.array([0.3, -0.2, 0.1]))
    batch = LAYOUT.split(random_rows(50))
    weights, key = jnp.array([1.0, -2.0]), jax.random.key(3)
    td_target = np.asarray(td3.td_target(critics, actor, batch, weights, key))
    sign = np.sign(np.asarray(jax.random.normal(key, (50, 1))))[:, 0] if noise else np.zeros(50)
    after = np.asarray(batch.next_observation)
    action = np.clip(np.tanh(after @ [0.3, -0.2] + 0.1) + 0.5 * sign, -1, 1)
    first = after @ [1.0, 2.0] + 3.0 * action + 0.5
    second = after @ [-1.0, 0.0] + 4.0 * action
    gain = np.asarray(batch.gains) @ [1.0, -2.0]
    expected = gain + 0.9 * (1 - np.asarray(batch.terminated)) * np.minimum(first, second)
    np.testing.assert_allclose(td_target, expected, rtol=1e-4, atol=1e-4)
    assert np.asarray(batch.terminated).any()


def test_a_critic_step_is_adam_on_the_squared_errors() -> None:
    """Adam's first step is the sign of the gradient, which is calculated by hand."""
    td3 = linear()
    critics, actor = td3.init_critics(jax.random.key(0)), td3.init_actor(jnp.array([0.1, 0.2, 0.0]))
    batch, weights, key = LAYOUT.split(random_rows(30)), jnp.array([1.0, 0.0]), jax.random.key(1)
    after, loss = td3.critic_step(critics, actor, batch, weights, key)
    td_target = np.asarray(td3.td_target(critics, actor, batch, weights, key))
    inputs = np.concatenate([batch.observation, batch.action, np.ones((30, 1))], axis=1)
    errors = inputs @ np.asarray(critics.parameters).T - td_target[:, None]  # (n, 2)
    assert float(loss) == pytest.approx(np.square(errors).mean(axis=0).sum(), rel=1e-4)
    gradient = 2 * errors.T @ inputs / 30
    change = np.asarray(after.parameters - critics.parameters)
    np.testing.assert_allclose(change, -CONFIG.critic_learning_rate * np.sign(gradient), rtol=1e-3)
    np.testing.assert_array_equal(after.target, critics.target)


def test_the_actor_ascends_the_first_critic_and_targets_follow() -> None:
    td3 = linear()
    critics = replace(
        td3.init_critics(jax.random.key(0)),
        parameters=jnp.array([[1.0, 2.0, -3.0, 0.5], [9.0, 9.0, 9.0, 9.0]]),
        target=jnp.zeros((2, 4)),
    )
    actor = td3.init_actor(jnp.array([0.3, -0.2, 0.1]))
    observation = LAYOUT.split(random_rows(30)).observation
    critics_after, actor_after = td3.delayed_step(critics, actor, observation)
    # dQ/da = -3, da/dtheta = (1 - tanh^2) [s, 1]
    slope = 1 - np.tanh(np.asarray(observation) @ [0.3, -0.2] + 0.1) ** 2
    inputs = np.concatenate([observation, np.ones((30, 1))], axis=1)
    gradient = (-3.0 * slope[:, None] * inputs).mean(axis=0)
    ascending = td3.gradient(actor.parameters, critics.parameters[0], observation)
    np.testing.assert_allclose(ascending, gradient, rtol=1e-4)
    change = np.asarray(actor_after.parameters - actor.parameters)
    np.testing.assert_allclose(change, CONFIG.actor_learning_rate * np.sign(gradient), rtol=1e-3)
    np.testing.assert_allclose(critics_after.target, 0.25 * critics.parameters)
    expected = 0.75 * actor.target + 0.25 * actor_after.parameters
    np.testing.assert_allclose(actor_after.target, expected, rtol=1e-6)


@pytest.mark.parametrize("as_in_qdax", [False, True])
def test_training_equals_a_loop_over_its_steps_and_learners_are_independent(as_in_qdax: bool) -> None:
    """Three learners at once; and each by itself, step by step, with a step of the actor every other time.

    As in QDax, the actor has batches of its own, and the critics' targets follow after every step.
    """
    config = replace(CONFIG, delayed_targets=not as_in_qdax, own_actor_batch=as_in_qdax)
    td3 = TD3(LAYOUT, Network((2, 4, 1), head="tanh"), (5,), config)
    critic_keys, keys = jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.key(1), 3)
    critics = jax.vmap(td3.init_critics)(critic_keys)
    start = jax.random.normal(jax.random.key(2), (3, td3.actor.parameters))
    actors = jax.vmap(td3.init_actor)(start)
    weights = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])
    rows = random_rows(9 if as_in_qdax else 6, 16)
    critic_rows = rows.reshape(3, 3, 16, -1)[:, :2].reshape(6, 16, -1) if as_in_qdax else rows
    trained_critics, trained_actors, losses = td3.train(critics, actors, rows, weights, keys)
    for learner in range(3):
        critic, actor = jax.tree.map(lambda leaf, learner=learner: leaf[learner], (critics, actors))
        errors = []
        for number in range(6):
            key = jax.random.fold_in(keys[learner], number)
            batch = LAYOUT.split(critic_rows[number])
            target = critic.target
            critic, error = td3.critic_step(critic, actor, batch, weights[learner], key)
            errors.append(float(error))
            followed = (1 - CONFIG.tau) * target + CONFIG.tau * critic.parameters
            np.testing.assert_allclose(critic.target, followed if as_in_qdax else target, atol=1e-6)
            if number % CONFIG.policy_delay == CONFIG.policy_delay - 1:
                seen = LAYOUT.split(rows[number // 2 * 3 + 2]) if as_in_qdax else batch
                critic, actor = td3.delayed_step(critic, actor, seen.observation)
        np.testing.assert_allclose(trained_critics.parameters[learner], critic.parameters, atol=1e-5)
        np.testing.assert_allclose(trained_critics.target[learner], critic.target, atol=1e-5)
        np.testing.assert_allclose(trained_actors.parameters[learner], actor.parameters, atol=1e-5)
        np.testing.assert_allclose(trained_actors.target[learner], actor.target, atol=1e-5)
        assert float(losses[learner]) == pytest.approx(np.mean(errors), rel=1e-4)


def test_gradient_ascent_is_adam_on_the_value_of_each_policy() -> None:
    """Of three policies at once, in two calls; and of each by itself, step by step."""
    td3 = TD3(LAYOUT, Network((2, 4, 1), head="tanh"), (5,), CONFIG)
    critic = td3.init_critics(jax.random.key(0)).parameters[0]
    policies = jax.random.normal(jax.random.key(2), (3, td3.actor.parameters))
    rows = random_rows(20, 64)
    ascent = td3.ascend(td3.init_ascent(policies), critic, rows[:12])
    varied = td3.ascend(ascent, critic, rows[12:]).policies
    adam = optax.adam(CONFIG.policy_learning_rate)

    @jax.jit
    def loss(parameters: Array, rows: Array) -> Array:
        observation = LAYOUT.split(rows).observation
        return -td3.twins.value(critic, observation, td3.actor(parameters, observation)).mean()

    for start, after in zip(policies, varied, strict=True):
        parameters, optimizer = start, adam.init(start)
        for batch in rows:
            change, optimizer = adam.update(jax.grad(loss)(parameters, batch), optimizer)
            parameters = optax.apply_updates(parameters, change)
        np.testing.assert_allclose(after, parameters, atol=1e-4)
        assert loss(after, rows[0]) < loss(start, rows[0]) - 1e-3


def test_td3_learns_to_move_a_point_to_the_middle() -> None:
    config = TD3Config(gamma=0.9, critic_learning_rate=3e-3, actor_learning_rate=3e-3)
    td3 = TD3(LINE, Network((1, 16, 1), head="tanh"), (32, 32), config)
    critics = jax.vmap(td3.init_critics)(jax.random.key(0)[None])
    start = 0.1 * jax.random.normal(jax.random.key(3), (1, td3.actor.parameters))
    actors = jax.vmap(td3.init_actor)(start)
    before = line_return(td3.actor, actors.parameters[0])
    rows, keys = line_batches(1500, 64), jax.random.key(1)[None]
    _, actors, _ = td3.train(critics, actors, rows, jnp.ones((1, 1)), keys)
    assert before < best_line_return() - 1.5
    assert line_return(td3.actor, actors.parameters[0]) > best_line_return() - 0.15
