"""Whole episodes against a slow loop over single steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.physics import Array
from ppga.policies import apply_mlp, init_mlp
from ppga.rollouts import evaluate, record

from conftest import shared_task


@pytest.mark.parametrize("name", ["hopper", "ant"])
def test_evaluate_is_the_sum_and_mean_over_the_steps_lived(name: str) -> None:
    task = shared_task(name, episode_length=60)
    n = 5

    def act(observations: Array, key: Array, steps: Array) -> Array:
        # not of the observations: XLA rounds a loop otherwise than single steps, and walking is chaotic
        del observations
        return jax.random.normal(key, (n, task.action_size)) + 0.01 * steps[:, None]

    key = jax.random.key(0)
    scores = jax.jit(lambda key: evaluate(task, act, key, n))(key)

    start_key, act_key = jax.random.split(key)
    reset, step = jax.jit(lambda key: task.reset(key, n)), jax.jit(task.step)
    state = reset(start_key)
    rewards: list[list[float]] = [[] for _ in range(n)]
    touches: list[list[Array]] = [[] for _ in range(n)]
    while not state.finished.all():
        act_key, now = jax.random.split(act_key)
        running = ~state.finished
        state = step(state, jax.jit(act)(state.observation, now, state.steps))
        for i in np.flatnonzero(running):
            rewards[i].append(float(state.reward[i]))
            touches[i].append(state.proxies[i])
    assert scores.steps.tolist() == [len(lived) for lived in rewards]
    np.testing.assert_allclose(scores.objective, [sum(lived) for lived in rewards], rtol=1e-4)
    np.testing.assert_allclose(scores.measures, [jnp.stack(t).mean(0) for t in touches], rtol=1e-5)
    if name == "hopper":
        assert len(set(scores.steps.tolist())) > 1, "episodes of different lengths make this test"


def test_record_keeps_what_happened_and_when_it_ended() -> None:
    task = shared_task("hopper")
    key = jax.random.key(0)

    def act(observations: Array, key: Array, steps: Array) -> Array:
        return jax.random.uniform(key, (len(steps), 3), minval=-1.0) + 0 * observations[:, :3]

    recording = jax.jit(lambda key: record(task, act, key, 4, 120))(key)
    assert recording.observation.shape == (4, 120, 11)
    assert recording.action.shape == (4, 120, 3)
    lived = np.asarray(recording.alive)
    assert (np.diff(lived.astype(int), axis=1) <= 0).all(), "nobody comes back to life"
    assert not lived.all()
    assert (np.asarray(recording.reward)[~lived] == 0).all()
    assert (np.asarray(recording.reward)[lived] != 0).all()


def test_mlp_against_numpy() -> None:
    layers = init_mlp(jax.random.key(0), (5, 8, 8, 2), last_scale=0.1)
    inputs = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    (w1, b1), (w2, b2), (w3, b3) = [(np.asarray(w), np.asarray(b)) for w, b in layers]
    expected = np.tanh(np.tanh(inputs @ w1 + b1) @ w2 + b2) @ w3 + b3
    np.testing.assert_allclose(apply_mlp(layers, jnp.asarray(inputs)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w2.T @ w2, 2 * np.eye(8), atol=1e-5)  # orthogonal, gain sqrt 2
    np.testing.assert_allclose(w3.T @ w3, 0.01 * np.eye(2), atol=1e-6)
