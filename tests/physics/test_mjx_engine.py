"""MJX compared with MuJoCo on the same models, within the precision of float32."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.physics import Array
from ppga.policies.network import apply_mlp
from ppga.policies.policy import init_mlp
from ppga.tasks import Task, TaskState

from helpers.tasks import NAMES, shared_task

N = 12
EXACT_STEPS, STEPS = 5, 40
# After five control steps, relative where values are above 1: MJX computes in float32, contacts included.
TOLERANCE = 1e-3


@cache
def jitted_step(task: Task) -> Callable[[TaskState, Array], TaskState]:
    return jax.jit(task.step)


@cache
def jitted_reset(task: Task) -> Callable[[Array], TaskState]:
    return jax.jit(lambda key: task.reset(key, N))


def play(task: Task) -> tuple[TaskState, TaskState, Array]:
    """States after EXACT_STEPS and after STEPS under one policy with noise, and the mean proxies (N, k)."""
    layers = init_mlp(jax.random.key(1), (task.observation_size, 32, task.action_size))
    noise = 0.5 * jax.random.normal(jax.random.key(2), (STEPS, N, task.action_size))

    act = jax.jit(lambda observation, noise: apply_mlp(layers, 0.1 * observation) + noise)
    step = jitted_step(task)
    state = early = jitted_reset(task)(jax.random.key(0))
    contacts = jnp.zeros_like(state.proxies)
    for t in range(STEPS):
        state = step(state, act(state.observation, noise[t]))
        state = replace(state, terminated=state.diverged)  # continue after a fall
        contacts += state.proxies
        if t + 1 == EXACT_STEPS:
            early = state
    return early, state, contacts / STEPS


@pytest.mark.parametrize(
    "name",
    ["hopper", *(pytest.param(one, marks=pytest.mark.long) for one in NAMES if one != "hopper")],
)
def test_mjx_moves_bodies_as_mujoco_does(name: str) -> None:
    mjx, mujoco = shared_task(name, physics="mjx"), shared_task(name)
    (early, late, contacts), (early_there, late_there, contacts_there) = play(mjx), play(mujoco)
    for ours, theirs in (
        (early.observation, early_there.observation),
        (early.reward, early_there.reward),
    ):
        error = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
        assert error.max() <= TOLERANCE
    np.testing.assert_array_equal(early.proxies, early_there.proxies)
    assert late.steps.tolist() == late_there.steps.tolist() == [STEPS] * N
    assert not late.diverged.any()
    # the system is chaotic, so later trajectories differ, but their statistics are alike
    standard_error = np.sqrt((np.var(contacts, axis=0) + np.var(contacts_there, axis=0)) / N)
    difference = np.abs(np.mean(contacts, axis=0) - np.mean(contacts_there, axis=0))
    assert (difference <= 3 * standard_error + 0.01).all(), (
        f"{difference} for a standard error of {standard_error}"
    )

    if name != "hopper":
        return
    # the rest of the interface, on the smallest model
    step = jitted_step(mjx)
    start = jitted_reset(mjx)(jax.random.key(0))
    some = replace(start, terminated=jnp.arange(N) >= 4)
    action = jnp.full((N, mjx.action_size), 0.3, jnp.float32)
    healthy = step(some, action)
    np.testing.assert_array_equal(healthy.observation[4:], start.observation[4:])
    assert (healthy.observation[:4] != start.observation[:4]).any(axis=1).all()
    sick = step(some, action.at[1, 0].set(jnp.nan))
    assert sick.diverged.tolist() == [i == 1 for i in range(N)]
    assert sick.terminated[1]
    np.testing.assert_array_equal(sick.observation[1], start.observation[1])
    others = np.arange(N) != 1
    np.testing.assert_array_equal(sick.observation[others], healthy.observation[others])


@pytest.mark.parametrize(
    "name",
    ["halfcheetah", "ant", *(pytest.param(one, marks=pytest.mark.long) for one in ("walker2d", "hopper"))],
)
def test_mjx_has_the_integrators_of_these_gymnasium_models(name: str) -> None:
    task = shared_task(name, physics="mjx", integrator="gymnasium")
    assert task.observation_size == shared_task(name).observation_size


def test_chunks_of_many_bodies_return_in_order() -> None:
    """1,009 hoppers are more than one chunk on a CPU, and a prime number does not divide evenly."""
    n = 1009

    def start(task: Task) -> Array:
        observation: Array = jax.jit(lambda key: task.reset(key, n).observation)(jax.random.key(0))
        return observation

    np.testing.assert_allclose(
        start(shared_task("hopper", physics="mjx")), start(shared_task("hopper")), atol=1e-6
    )
