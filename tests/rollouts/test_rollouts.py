"""Episodes in one program against a slow loop over single steps."""

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
from ppga.policies.network import Network, apply_mlp
from ppga.policies.policy import Policy, init_mlp, init_policy
from ppga.rollouts import Evaluator, EvaluatorSettings, episode_keys, evaluate, record

from helpers.tasks import shared_task


@pytest.mark.parametrize("name", ["hopper", "ant"])
def test_scores_are_sums_and_means_over_the_steps_of_an_episode(name: str) -> None:
    task = shared_task(name, episode_length=60)
    n = 5

    def act(observations: Array, key: Array, steps: Array) -> Array:
        # independent of the observations, and in eighths: XLA rounds a loop differently from single steps,
        # and walking is chaotic
        del observations
        return jnp.round(8 * jax.random.normal(key, (n, task.action_size)) + steps[:, None] % 3) / 8

    key = jax.random.key(0)
    scores = jax.jit(lambda key: evaluate(task, act, key, n))(key)

    start_key, act_key = jax.random.split(key)
    reset, step = jax.jit(lambda key: task.reset(key, n)), jax.jit(task.step)
    state = reset(start_key)
    rewards: list[list[float]] = [[] for _ in range(n)]
    proxies: list[list[Array]] = [[] for _ in range(n)]
    for time in itertools.count():
        if state.finished.all():
            break
        now = jax.random.fold_in(act_key, time)
        running = ~state.finished
        state = step(state, jax.jit(act)(state.observation, now, state.steps))
        for i in np.flatnonzero(running):
            rewards[i].append(float(state.reward[i]))
            proxies[i].append(state.proxies[i])
    assert scores.steps.tolist() == [len(episode) for episode in rewards]
    assert scores.terminated.tolist() == [len(episode) < task.episode_length for episode in rewards]
    np.testing.assert_allclose(scores.objective, [sum(episode) for episode in rewards], rtol=1e-4)
    np.testing.assert_allclose(
        scores.measures, [jnp.stack(episode).mean(0) for episode in proxies], rtol=1e-5
    )
    if name == "hopper":
        assert len(set(scores.steps.tolist())) > 1, "this test needs episodes of different lengths"


@pytest.mark.parametrize(
    ("which", "count"), [("not long", 2), pytest.param("long", 3, marks=pytest.mark.long)]
)
def test_threads_change_no_bit_with_all_optimizations(which: str, count: int) -> None:
    """Without some of XLA's optimizations, as in the other tests, scores may differ in their last bits."""
    disabled = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in disabled}
    tests = str(Path(__file__).parents[1] / "helpers" / "optimized.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, tests],
        env=environment | {"PPGA_OPTIMIZED": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout


def test_scores_equal_those_of_each_policy_by_itself() -> None:
    task, network = shared_task("hopper", episode_length=40), Network((11, 8, 3))
    keys = jax.random.split(jax.random.key(0), 3)
    policies = jax.vmap(lambda key: init_policy(key, network, 0.4))(keys)
    scores, _ = Evaluator(task, network, EvaluatorSettings(2))(policies, jax.random.key(1))
    for number, keys in enumerate(episode_keys(jax.random.key(1), 3, 2)):
        one = jax.tree.map(lambda leaf, number=number: leaf[number], policies)

        def act(observation: Array, key: Array, steps: Array, one: Policy = one) -> Array:
            del key, steps
            return one.mean_action(network, observation)

        alone = jax.jit(lambda keys, act=act: evaluate(task, act, keys, 2))(keys)
        np.testing.assert_array_equal(scores.steps[number], alone.steps)
        np.testing.assert_allclose(scores.objective[number], alone.objective, rtol=1e-4)


def test_recordings_mark_the_steps_of_an_episode() -> None:
    task = shared_task("hopper")
    key = jax.random.key(0)

    def act(observations: Array, key: Array, steps: Array) -> Array:
        return jax.random.uniform(key, (len(steps), 3), minval=-1.0) + 0 * observations[:, :3]

    recording = jax.jit(lambda key: record(task, act, key, 4, 120))(key)
    assert recording.observation.shape == (4, 120, 11)
    assert recording.action.shape == (4, 120, 3)
    active = np.asarray(recording.active)
    assert (np.diff(active.astype(int), axis=1) <= 0).all(), "no episode restarts"
    assert not active.all()
    assert (np.asarray(recording.reward)[~active] == 0).all()
    assert (np.asarray(recording.reward)[active] != 0).all()


def test_mlp_equals_a_calculation_in_numpy() -> None:
    layers = init_mlp(jax.random.key(0), (5, 8, 8, 2), last_scale=0.1)
    inputs = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    (w1, b1), (w2, b2), (w3, b3) = [(np.asarray(w), np.asarray(b)) for w, b in layers]
    expected = np.tanh(np.tanh(inputs @ w1 + b1) @ w2 + b2) @ w3 + b3
    np.testing.assert_allclose(apply_mlp(layers, jnp.asarray(inputs)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w2.T @ w2, 2 * np.eye(8), atol=1e-5)  # orthogonal, gain sqrt 2
    np.testing.assert_allclose(w3.T @ w3, 0.01 * np.eye(2), atol=1e-6)
