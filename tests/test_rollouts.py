"""Whole episodes against a slow loop over single steps."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.physics import Array
from ppga.policies import Network, Policy, apply_mlp, init_mlp, init_policy
from ppga.rollouts import Judge, episode_keys, evaluate, record

from conftest import shared_task


@pytest.mark.parametrize("name", ["hopper", "ant"])
def test_evaluate_is_the_sum_and_mean_over_the_steps_lived(name: str) -> None:
    task = shared_task(name, episode_length=60)
    n = 5

    def act(observations: Array, key: Array, steps: Array) -> Array:
        # not of the observations, and in eighths: XLA rounds a loop otherwise than single steps, and walking
        # is chaotic
        del observations
        return jnp.round(8 * jax.random.normal(key, (n, task.action_size)) + steps[:, None] % 3) / 8

    key = jax.random.key(0)
    scores = jax.jit(lambda key: evaluate(task, act, key, n))(key)

    start_key, act_key = jax.random.split(key)
    reset, step = jax.jit(lambda key: task.reset(key, n)), jax.jit(task.step)
    state = reset(start_key)
    rewards: list[list[float]] = [[] for _ in range(n)]
    touches: list[list[Array]] = [[] for _ in range(n)]
    for time in itertools.count():
        if state.finished.all():
            break
        now = jax.random.fold_in(act_key, time)
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


@pytest.mark.parametrize(
    ("which", "count"), [("not long", 2), pytest.param("long", 3, marks=pytest.mark.long)]
)
def test_as_users_have_it(which: str, count: int) -> None:
    """What must hold to the bit, with all of XLA's optimisations: without them it may not."""
    left_out = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    others = {name: value for name, value in os.environ.items() if name not in left_out}
    tests = str(Path(__file__).with_name("optimised.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, tests],
        env=others | {"PPGA_OPTIMISED": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout


def test_judging_is_evaluating_each_policy_by_itself() -> None:
    task, network = shared_task("hopper", episode_length=40), Network((11, 8, 3))
    keys = jax.random.split(jax.random.key(0), 3)
    policies = jax.vmap(lambda key: init_policy(key, network, 0.4))(keys)
    judged, _ = Judge(task, network, 2)(policies, jax.random.key(1))
    for number, keys in enumerate(episode_keys(jax.random.key(1), 3, 2)):
        one = jax.tree.map(lambda leaf, number=number: leaf[number], policies)

        def act(observation: Array, key: Array, steps: Array, one: Policy = one) -> Array:
            del key, steps
            return one.mean_action(network, observation)

        alone = jax.jit(lambda keys, act=act: evaluate(task, act, keys, 2))(keys)
        np.testing.assert_array_equal(judged.steps[number], alone.steps)
        np.testing.assert_allclose(judged.objective[number], alone.objective, rtol=1e-4)


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
