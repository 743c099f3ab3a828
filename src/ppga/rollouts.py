"""Rollouts: policies in environments, to judge by (`evaluate`) or to look at (`record`)."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.errors import at_least_one
from ppga.physics import Array
from ppga.policies import Network, Policy
from ppga.tasks import Task, TaskState

Act = Callable[[Array, Array, Array], Array]
"""(observations (n, o), random key, control steps lived (n,)) -> actions (n, a) in [-1, 1]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """What n whole episodes came to.

    Attributes:
        objective: (n,) return, the undiscounted sum of rewards.
        measures: (n, k) each proxy's mean over the steps the episode actually lived.
        steps: (n,) how many those were.
        diverged: (n,) bool, ended by diverging physics.
    """

    objective: Array
    measures: Array
    steps: Array
    diverged: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recording:
    """Steps of n episodes, one after the other.

    Attributes:
        observation: (n, t, o) what the policy saw.
        action: (n, t, a) what it did.
        reward: (n, t) what it got; 0 after the end.
        proxies: (n, t, k) measure proxies; 0 after the end.
        alive: (n, t) bool, the step was lived.
    """

    observation: Array
    action: Array
    reward: Array
    proxies: Array
    alive: Array


def evaluate(task: Task, act: Act, key: Array, n: int) -> Scores:
    """Play n episodes at once until the last one has ended."""
    start_key, act_key = jax.random.split(key)
    state = task.reset(start_key, n)

    def unfinished(carry: tuple[TaskState, Array, Array, Array]) -> Array:
        return ~carry[0].finished.all()

    def step(carry: tuple[TaskState, Array, Array, Array]) -> tuple[TaskState, Array, Array, Array]:
        state, key, objective, touched = carry
        key, now = jax.random.split(key)
        state = task.step(state, act(state.observation, now, state.steps))
        return state, key, objective + state.reward, touched + state.proxies

    state, _, objective, touched = jax.lax.while_loop(
        unfinished, step, (state, act_key, jnp.zeros_like(state.reward), jnp.zeros_like(state.proxies))
    )
    measures = touched / jnp.maximum(state.steps, 1)[:, None]
    return Scores(objective, measures, state.steps, state.diverged)


def judge(
    task: Task, network: Network, policies: Policy, key: Array, episodes: int, sample: bool = False
) -> Scores:
    """Play several episodes with each of n policies, all at once.

    Args:
        task: what they do.
        network: their actor.
        policies: n of them.
        key: of starts and action noise.
        episodes: of each policy.
        sample: act with noise; by the mean action otherwise.

    Returns:
        Scores with arrays (n, episodes, ...).
    """
    n = len(policies.parameters)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        seen = observation.reshape(n, episodes, -1)
        action = jax.vmap(lambda policy, seen: policy.mean_action(network, seen))(policies, seen)
        if sample:
            action += jnp.exp(policies.log_std)[:, None] * jax.random.normal(key, action.shape)
        return jnp.asarray(action.reshape(n * episodes, -1))

    scores = evaluate(task, act, key, n * episodes)
    apart: Scores = jax.tree.map(lambda rows: rows.reshape(n, episodes, *rows.shape[1:]), scores)
    return apart


def record(task: Task, act: Act, key: Array, n: int, steps: int) -> Recording:
    """The first `steps` steps of n episodes."""
    at_least_one("steps", steps)
    start_key, act_key = jax.random.split(key)

    def step(state: TaskState, key: Array) -> tuple[TaskState, Recording]:
        action = act(state.observation, key, state.steps)
        after = task.step(state, action)
        lived = after.steps > state.steps
        return after, Recording(state.observation, action, after.reward, after.proxies, lived)

    _, recording = jax.lax.scan(step, task.reset(start_key, n), jax.random.split(act_key, steps))
    environments_first: Recording = jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), recording)
    return environments_first
