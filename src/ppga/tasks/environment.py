"""The interface of all tasks: a batch of environments that are stepped together, inside jitted code."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, check_count
from ppga.limits import LONGEST_EPISODE
from ppga.physics import Array, select
from ppga.types import NumpyArray

ROUNDING = 1e-5
"""How far a measure may exceed its range because of rounding, as a share of the larger absolute bound."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TaskState:
    """A batch of n environments after a step or a reset.

    Attributes:
        bodies: states of the simulations, whose type depends on the environment.
        observation: (n, observation_size) input of the policy in the next step. At the end of an episode this
            is its last observation, until `restart`.
        reward: (n,) reward of the last step; 0 if no step was taken.
        proxies: (n, k) Markovian measure proxies delta_i of the last step; 0 if no step was taken.
        terminated: (n,) bool, the episode ended by the task's rule or because its physics diverged.
        truncated: (n,) bool, the episode ended at the time limit, or the simulator cut it short, without a
            terminal state.
        diverged: (n,) bool, the episode ended because its physics diverged; that step does not count.
        steps: (n,) int32, control steps taken in this episode.
    """

    bodies: Any
    observation: Array
    reward: Array
    proxies: Array
    terminated: Array
    truncated: Array
    diverged: Array
    steps: Array

    @property
    def finished(self) -> Array:
        """(n,) bool, the episode has ended."""
        return self.terminated | self.truncated


class Environment(ABC):
    """A task, as a batch of n environments.

    Robots in MuJoCo are subclasses of `Task`; `from_brax` and `from_gymnasium` wrap environments of other
    libraries.

    Attributes:
        name: name of the task in files.
        physics_name: name of the simulator.
        integrator: name of the integrator; empty if it cannot be chosen.
        episode_length: control steps until an episode is truncated.
        observation_size: numbers in an observation.
        action_size: numbers in an action, each in [-1, 1].
        control_dt: seconds of simulated time in one control step; NaN if unknown.
        control_range: (action_size, 2) controls of the actuators for actions of -1 and 1.
        clip: observations and rewards are clipped to [-clip, clip]; None for no limit.
        model: model for drawing, in the positions that `pose` returns; None if there is none.
    """

    name: str
    physics_name: str
    integrator: str
    episode_length: int
    observation_size: int
    action_size: int
    control_dt: float
    control_range: tuple[tuple[float, float], ...]
    clip: float | None = None
    model: mujoco.MjModel | None = None

    @property
    @abstractmethod
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Lower and upper bound of each measure; [0, 1] by default, the range of a share of time."""
        return ((0.0, 1.0),) * len(self.measure_names)

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Default number of archive cells along each measure: 10, as in the paper."""
        return (10,) * len(self.measure_names)

    @property
    def qd_offset(self) -> float:
        """Subtracted from every objective in the QD-score; report it together with the score."""
        return 0.0

    @property
    def simulation_warnings(self) -> set[str]:
        """Warnings for the user about the simulations so far, one sentence each."""
        return set()

    def check_measures(self, measures: NumpyArray, when: str) -> None:
        """Check names, ranges and archive shape of the measures, and their values in one environment.

        Args:
            measures: (k,) if the task is correct, measures that it returns.
            when: when it returns them, for the message.

        Raises:
            InputError: they do not fit together, or a measure lies outside its range.
        """
        names, ranges = self.measure_names, self.measure_ranges
        try:
            pairs = np.array(ranges, float)
            finite = pairs.shape == (len(names), 2) and np.isfinite(pairs).all()
            valid = bool(finite and (pairs[:, 0] < pairs[:, 1]).all())
        except (TypeError, ValueError, IndexError):
            valid = False
        if not names or not valid:
            raise InputError(
                f"{self.name}: measure_ranges must be a finite pair (low, high) for each of measure_names "
                f"({', '.join(map(str, names)) or 'which is empty'}), got {ranges}."
            )
        shape = self.archive_shape
        if len(shape) != len(names) or any(size < 1 for size in shape):
            raise InputError(
                f"{self.name}: archive_shape must have the number of cells, at least 1, along each of "
                f"{len(names)} measures, got {shape}."
            )
        if measures.shape != (len(names),):
            raise InputError(
                f"{self.name}: {when}, measures must have shape ({len(names)},) for {', '.join(names)}, got "
                f"{measures.shape}: {measures.tolist()}."
            )
        for name, value, (low, high) in zip(names, measures.tolist(), ranges, strict=True):
            slack = ROUNDING * max(abs(low), abs(high))
            if not low - slack <= value <= high + slack:  # also if it is NaN
                raise InputError(
                    f"{self.name}: {when}, {name!r} is {value:g}, which is not within its range "
                    f"[{low:g}, {high:g}] (all measures: {measures.tolist()}). Correct the function that "
                    "measures it, or widen measure_ranges."
                )

    def reset(self, key: Array, n: int) -> TaskState:
        """Environments at random initial states.

        Args:
            key: one random key () for all environments, or one for each (n,).
            n: number of environments.
        """
        check_count("the number of environments", n)
        return self._place(key if key.ndim else jax.random.split(key, n), None)

    def step(self, state: TaskState, action: Array) -> TaskState:
        """Advance all environments by one control step.

        Finished environments keep their state, with reward and proxies 0, until `restart`.

        Args:
            state: of n environments.
            action: (n, action_size), clipped to [-1, 1].

        Raises:
            InputError: the actions have another shape.
        """
        action = jnp.asarray(action)
        expected = (len(state.steps), self.action_size)
        if action.shape != expected:
            raise InputError(f"{self.name} takes actions of shape {expected}, got {action.shape}.")
        return self._step(state, jnp.clip(action, -1.0, 1.0))

    def restart(self, state: TaskState, key: Array) -> TaskState:
        """Reset finished environments to random initial states; the others keep their state.

        Args:
            state: of n environments.
            key: one random key () for all environments, or one for each (n,).
        """

        def fresh(state: TaskState) -> TaskState:
            keys = key if key.ndim else jax.random.split(key, len(state.steps))
            return select(state.finished, self._place(keys, state), state)

        restarted: TaskState = jax.lax.cond(state.finished.any(), fresh, lambda state: state, state)
        return restarted

    @abstractmethod
    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        """Environments at random initial states.

        Args:
            keys: (n,) random keys.
            before: state of n environments; only the finished ones need to be reset. None to reset all.
        """

    @abstractmethod
    def _step(self, state: TaskState, action: Array) -> TaskState:
        """One control step of n environments under actions (n, action_size) within [-1, 1]."""

    def next_state(
        self, state: TaskState, bodies: Any, observation: Array, reward: Array, proxies: Array,
        terminated: Array, truncated: Array | None = None, failed: Array | None = None,
        fallback: Any = None,
    ) -> TaskState:  # fmt: skip
        """The state of n environments after a step, for subclasses.

        Finished environments keep their state. A step whose observation, reward or proxies are not finite
        counts as diverged.

        Args:
            state: before the step.
            bodies: states of the simulations after the step.
            observation: (n, observation_size) after the step.
            reward: (n,) of the step.
            proxies: (n, k) of the step.
            terminated: (n,) bool, ended by the task's rule.
            truncated: (n,) bool, truncated by the simulator before the episode's length is reached.
            failed: (n,) bool, the simulation diverged.
            fallback: states of the simulations where no step was taken; those before the step by default.
        """
        active = ~state.finished
        finite = (
            jnp.isfinite(observation).all(axis=1) & jnp.isfinite(reward) & jnp.isfinite(proxies).all(axis=1)
        )
        valid = finite if failed is None else finite & ~failed
        taken, diverged = active & valid, active & ~valid
        steps = state.steps + taken
        time_limit = steps >= self.episode_length
        after = TaskState(
            bodies=bodies,
            observation=observation,
            reward=reward,
            proxies=proxies,
            terminated=terminated,
            truncated=(time_limit if truncated is None else time_limit | truncated) & ~terminated,
            diverged=jnp.zeros_like(valid),
            steps=steps,
        )
        unchanged = replace(
            state,
            bodies=state.bodies if fallback is None else fallback,
            reward=jnp.zeros_like(state.reward),
            proxies=jnp.zeros_like(state.proxies),
            terminated=state.terminated | diverged,
            diverged=state.diverged | diverged,
        )
        return select(taken, after, unchanged)

    def measures(self, total: Array, steps: Array) -> Array:
        """Measures (n, k) of n episodes; by default the means of their proxies.

        Args:
            total: (n, k) sums of the proxies over an episode.
            steps: (n,) number of steps taken.
        """
        return total / jnp.maximum(steps, 1)[:, None]

    def pose(self, state: TaskState) -> Array:
        """Joint positions (n, nq) of the model for drawing; (n, 0) if there is no model."""
        return jnp.zeros((len(state.steps), 0))

    @property
    def has_feet(self) -> bool:
        """Whether each proxy is the contact of a foot with the floor."""
        return False

    def drawable(self) -> mujoco.MjModel:
        """The model for drawing; raises an InputError if there is none."""
        if self.model is None:
            raise InputError(
                f"{self.name} has no MuJoCo model, so its robot cannot be drawn. Plots of the archive work "
                "without one."
            )
        return self.model

    def callers(self, n: int) -> int:  # noqa: ARG002
        """Number of threads that step n environments fastest, if each thread steps a share of them."""
        return 1

    def for_callers(self, callers: int) -> "Environment":  # noqa: ARG002
        """The same task, to be used by that many threads at the same time, each with its own environments."""
        return self

    def first_state(self, bodies: Any, observation: Array, failed: Array | None = None) -> TaskState:
        """The state of n environments before their first step, for subclasses.

        An environment whose simulation failed to start, or whose observation is not finite, has an episode of
        0 steps that ended by divergence. Its observation is zero, so that nothing computed from it is NaN.

        Args:
            bodies: states of the simulations.
            observation: (n, observation_size).
            failed: (n,) bool, the simulation could not be started.
        """
        n = len(observation)
        no = jnp.zeros(n, jnp.bool_)
        failed = ~jnp.isfinite(observation).all(axis=1) | (no if failed is None else failed)
        return TaskState(
            bodies=bodies,
            observation=jnp.where(failed[:, None], 0.0, observation),
            reward=jnp.zeros(n),
            proxies=jnp.zeros((n, len(self.measure_names))),
            terminated=failed,
            truncated=no,
            diverged=failed,
            steps=jnp.zeros(n, jnp.int32),
        )


class ExternalEnvironment(Environment):
    """Base class for environments of other libraries, whose measures are given as arguments.

    Args:
        name: name of the task in files.
        physics_name: name of the simulator.
        measure_names: names of the k measures.
        measure_ranges: lower and upper bound of each measure; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective in the QD-score.
        episode_length: control steps until an episode is truncated.
        episode: function of the proxies' sums (n, k) and the numbers of steps (n,) that returns the measures
            (n, k) of n episodes; the mean of each proxy by default.
    """

    integrator = ""

    def __init__(
        self,
        name: str,
        physics_name: str,
        measure_names: Sequence[str],
        measure_ranges: Sequence[tuple[float, float]] | None,
        archive_shape: Sequence[int] | None,
        qd_offset: float,
        episode_length: int,
        episode: Callable[[Array, Array], Array] | None,
    ) -> None:
        self.name, self.physics_name = name, physics_name
        self._names = tuple(measure_names)
        self._ranges = tuple(measure_ranges or [(0.0, 1.0)] * len(self._names))
        self._shape = tuple(archive_shape or (10,) * len(self._names))
        self._offset = float(qd_offset)
        self._episode = episode
        self.episode_length = check_count("episode_length", episode_length, LONGEST_EPISODE)

    def measures(self, total: Array, steps: Array) -> Array:
        """Measures (n, k) of n episodes, by the function `episode` if there is one; see `Environment`."""
        return super().measures(total, steps) if self._episode is None else self._episode(total, steps)

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return self._names

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Lower and upper bound of each measure."""
        return self._ranges

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Default number of archive cells along each measure."""
        return self._shape

    @property
    def qd_offset(self) -> float:
        """Subtracted from every objective in the QD-score."""
        return self._offset

    def check_sample(self, proxies: NumpyArray, n: int) -> None:
        """Check the measure function's values after the first step or reset of n environments.

        Args:
            proxies: (n, k) if the function is correct.
            n: number of environments.

        Raises:
            InputError: wrong shape, or a measure that is not finite or not within its range.
        """
        expected = (n, len(self._names))
        if proxies.shape != expected:
            raise InputError(
                f"{self.name}: the measure function must return shape {expected[1:]} for "
                f"{', '.join(self._names)} of each environment, got {proxies.shape} for {n}: "
                f"{proxies.tolist()}."
            )
        measures = np.asarray(self.measures(jnp.asarray(proxies, jnp.float32), jnp.ones(n)))
        for row in measures if measures.ndim else [measures]:
            self.check_measures(np.asarray(row), "at the start")
