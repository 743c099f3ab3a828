"""Episodes of policies in many environments at once, inside jitted code."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ppga import random
from ppga.errors import check_count
from ppga.physics import Array
from ppga.tasks import Environment, TaskState

Act = Callable[[Array, Array, Array], Array]
"""(observations (n, o), random key () or keys (n,), control steps of each episode so far (n,)) -> actions
(n, a) in [-1, 1]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """Scores of n episodes.

    Attributes:
        objective: (n,) return, the undiscounted sum of rewards.
        measures: (n, k) mean of each proxy over the episode's steps, unless the task defines it differently.
        steps: (n,) number of control steps.
        terminated: (n,) bool, the episode ended before the time limit, by the task's rule or by divergence.
        diverged: (n,) bool, the episode ended because its physics diverged.
    """

    objective: Array
    measures: Array
    steps: Array
    terminated: Array
    diverged: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recording:
    """The first t control steps of n episodes.

    Attributes:
        qpos: (n, t, nq) joint positions before the step; (n, t, 0) if the environment has no model to draw.
        observation: (n, t, o) before the step.
        action: (n, t, a) of the policy.
        reward: (n, t) of the step; 0 after the end of the episode.
        proxies: (n, t, k) measure proxies of the step; 0 after the end of the episode.
        active: (n, t) bool, the step was taken: the episode had not ended, and the physics did not diverge.
    """

    qpos: Array
    observation: Array
    action: Array
    reward: Array
    proxies: Array
    active: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transitions:
    """Transitions of n environments in t control steps, for off-policy learning.

    Attributes:
        observation: (n, t, o) before the step.
        action: (n, t, a) applied action, within [-1, 1].
        reward: (n, t) of the step.
        proxies: (n, t, k) measure proxies of the step.
        terminated: (n, t) bool, the episode ended in this step, and not at the time limit.
        next_observation: (n, t, o) after the step.
        active: (n, t) bool, the episode had not ended before the step.
        taken: (n, t) bool, the step was taken; the fields of other steps are meaningless.
    """

    observation: Array
    action: Array
    reward: Array
    proxies: Array
    terminated: Array
    next_observation: Array
    active: Array
    taken: Array


def evaluate(task: Environment, act: Act, key: Array, n: int, active: Array | None = None) -> Scores:
    """Play n episodes at once until the last one has ended; see `play` for the arguments."""
    return play(task, act, key, n, active)[0]


def play(
    task: Environment,
    act: Act,
    key: Array,
    n: int,
    active: Array | None = None,
    store_transitions: bool = False,
) -> tuple[Scores, Transitions | None]:
    """Play n episodes at once until the last one has ended.

    Args:
        task: the task.
        act: chooses the actions.
        key: one key () for all episodes, or one for each (n,); `act` is called with keys of the same shape.
        n: number of episodes.
        active: (n,) bool, which episodes are played; the other ones have 0 steps and an objective of 0.
        store_transitions: also return the transitions.

    Returns:
        The scores (n, ...), and the transitions (n, episode_length, ...) or None.
    """
    start_key, act_key = random.split_each(key)
    state = task.reset(start_key, n)
    if active is not None:
        state = replace(state, truncated=state.truncated | ~active)

    def unfinished(carry: _Carry) -> Array:
        return ~carry[0].finished.all()

    def step(carry: _Carry) -> _Carry:
        state, time, objective, proxies, transitions = carry
        action = act(state.observation, _at(act_key, time), state.steps)
        after = task.step(state, action)
        if transitions is not None:
            new = _transition(state, action, after)
            transitions = jax.tree.map(lambda values, new: values.at[time].set(new), transitions, new)
        return after, time + 1, objective + after.reward, proxies + after.proxies, transitions

    transitions = None
    if store_transitions:
        shapes = jax.eval_shape(_transition, state, jnp.zeros((n, task.action_size)), state)
        transitions = jax.tree.map(
            lambda leaf: jnp.zeros((task.episode_length, *leaf.shape), leaf.dtype), shapes
        )
    sums = jnp.zeros_like(state.reward), jnp.zeros_like(state.proxies)
    state, _, objective, proxies, transitions = jax.lax.while_loop(
        unfinished, step, (state, jnp.int32(0), *sums, transitions)
    )
    measures = task.measures(proxies, state.steps)
    scores = Scores(objective, measures, state.steps, state.terminated, state.diverged)
    return scores, _environments_first(transitions)


_Carry = tuple[TaskState, Array, Array, Array, Any]
"""State, time, sums of rewards and of proxies, and transitions (t, n, ...) or None."""


def explore(
    task: Environment, act: Act, state: TaskState, key: Array, steps: int
) -> tuple[TaskState, Transitions]:
    """Step environments that restart when an episode ends.

    Args:
        task: the task.
        act: chooses the actions.
        state: n environments.
        key: random key ().
        steps: number of control steps t.

    Returns:
        The environments after the last step, and the transitions (n, t, ...).
    """

    def step(state: TaskState, time: Array) -> tuple[TaskState, Transitions]:
        act_key, restart_key = jax.random.split(jax.random.fold_in(key, time))
        action = act(state.observation, act_key, state.steps)
        after = task.step(state, action)
        return task.restart(after, restart_key), _transition(state, action, after)

    state, transitions = jax.lax.scan(step, state, jnp.arange(steps))
    return state, _environments_first(transitions)


def record(task: Environment, act: Act, key: Array, n: int, steps: int) -> Recording:
    """Record the first `steps` steps of n episodes, the same episodes that `evaluate` plays with this key."""
    check_count("steps", steps)
    start_key, act_key = random.split_each(key)

    def step(state: TaskState, time: Array) -> tuple[TaskState, Recording]:
        action = act(state.observation, _at(act_key, time), state.steps)
        after = task.step(state, action)
        active = after.steps > state.steps
        return after, Recording(
            task.pose(state), state.observation, action, after.reward, after.proxies, active
        )

    _, steps_first = jax.lax.scan(step, task.reset(start_key, n), jnp.arange(steps))
    recording: Recording = _environments_first(steps_first)
    return recording


@partial(jax.jit, static_argnums=(1, 2))
def episode_keys(key: Array, policies: int, episodes: int) -> Array:
    """Keys (policies, episodes) that do not depend on how the policies are grouped."""
    return jax.vmap(lambda key: jax.random.split(key, episodes))(jax.random.split(key, policies))


def _transition(state: TaskState, action: Array, after: TaskState) -> Transitions:
    """The step from one state to the next, arrays (n, ...)."""
    return Transitions(
        observation=state.observation,
        action=jnp.clip(action, -1.0, 1.0),
        reward=after.reward,
        proxies=after.proxies,
        terminated=after.terminated,
        next_observation=after.observation,
        active=~state.finished,
        taken=after.steps > state.steps,
    )


def _environments_first(tree: Any) -> Any:
    """Arrays (t, n, ...) as (n, t, ...)."""
    return jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), tree)


def _at(key: Array, time: Array) -> Array:
    """Key () or keys (n,) of a time step."""
    return jax.vmap(jax.random.fold_in, (0, None))(key, time) if key.ndim else jax.random.fold_in(key, time)
