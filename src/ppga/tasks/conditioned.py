"""A task whose observation tells which measures an episode is to have."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ppga.physics import Array
from ppga.tasks.environment import Environment, TaskState

FREQUENCIES = 3
"""Sines and cosines of each target: networks follow a target that is only one number in them poorly."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TargetedBodies:
    """States of n simulations, each with a target.

    Attributes:
        bodies: states of the simulations.
        target: (n, k) target of the current episode; each measure is scaled from its range to [-1, 1].
        next_target: (n, k) target of the next episode.
    """

    bodies: Any
    target: Array
    next_target: Array


class ConditionedTask(Environment):
    """A task whose observations end with the target measures of the episode.

    Args:
        task: the task.
    """

    def __init__(self, task: Environment) -> None:
        self.task = task
        self.name, self.physics_name, self.integrator = task.name, task.physics_name, task.integrator
        self.episode_length, self.control_dt = task.episode_length, task.control_dt
        self.target_size = len(task.measure_names) * (1 + 2 * FREQUENCIES)
        self.observation_size = task.observation_size + self.target_size
        self.action_size, self.control_range, self.model = task.action_size, task.control_range, task.model

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return self.task.measure_names

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Lower and upper bound of each measure."""
        return self.task.measure_ranges

    @property
    def simulation_warnings(self) -> set[str]:
        """See `Environment.simulation_warnings`."""
        return self.task.simulation_warnings

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        if before is None:
            target = jnp.zeros((len(keys), len(self.measure_names)))
            return self._conditioned(self.task._place(keys, None), target, target)
        target = before.bodies.next_target
        return self._conditioned(self.task._place(keys, self._inner(before)), target, target)

    def _step(self, state: TaskState, action: Array) -> TaskState:
        after = self.task._step(self._inner(state), action)
        return self._conditioned(after, state.bodies.target, state.bodies.next_target)

    def _inner(self, state: TaskState) -> TaskState:
        """The state of the task itself."""
        observation = state.observation[:, : self.task.observation_size]
        return replace(state, bodies=state.bodies.bodies, observation=observation)

    def _conditioned(self, state: TaskState, target: Array, next_target: Array) -> TaskState:
        return replace(
            state,
            bodies=TargetedBodies(state.bodies, target, next_target),
            observation=jnp.concatenate([state.observation, target_inputs(target)], axis=1),
        )


def target_inputs(target: Array) -> Array:
    """Inputs (n, target_size) of a network for targets (n, k): themselves, their sines and cosines."""
    angles = [number * jnp.pi * target for number in range(1, FREQUENCIES + 1)]
    return jnp.concatenate([target, *map(jnp.sin, angles), *map(jnp.cos, angles)], axis=1)
