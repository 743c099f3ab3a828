"""What everything else needs of a task: many copies of it that are stepped together, inside jitted code."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, at_least_one
from ppga.physics import Array, select
from ppga.storage import NumpyArray

ROUNDING = 1e-5
"""How far beyond its range a measure may be for being rounded, in units of its largest bound."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TaskState:
    """n environments after a step (or a reset).

    Attributes:
        bodies: the simulations; what a row is made of is the environment's own business.
        observation: (n, observation_size) what the policy sees next; at the end of an episode the last
            observation before any reset.
        reward: (n,) of the last step; 0 where none was taken.
        proxies: (n, k) Markovian measure proxies delta_i of the last step; 0 where none was taken.
        terminated: (n,) bool, the episode ended by the task's rule or because its physics diverged.
        truncated: (n,) bool, the episode ended at the time limit, and only there.
        diverged: (n,) bool, the episode ended because its physics diverged; that step does not count.
        steps: (n,) int32, control steps lived in this episode.
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
        """(n,) bool, the episode is over."""
        return self.terminated | self.truncated


class Environment(ABC):
    """A task in n copies. Robots of your own are a `Task`; other simulators come in by `from_brax` and
    `from_gymnasium`.

    Attributes:
        name: what it is called in files.
        physics_name: who simulates it.
        integrator: how, if that can be chosen.
        episode_length: control steps until an episode is truncated.
        observation_size: numbers that a policy sees.
        action_size: numbers that it gives, each in [-1, 1].
        control_dt: seconds of simulated time in one control step; NaN if nobody knows.
        control_range: (action_size, 2) what the actuators take for -1 and 1.
        model: what can be drawn, if there is something; `pose` says where it is.
    """

    name: str
    physics_name: str
    integrator: str
    episode_length: int
    observation_size: int
    action_size: int
    control_dt: float
    control_range: tuple[tuple[float, float], ...]
    model: mujoco.MjModel | None = None

    @property
    @abstractmethod
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """Lower and upper bound of each measure; a share of time lies in [0, 1]."""
        return ((0.0, 1.0),) * len(self.measure_names)

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Default number of archive cells along each measure: 10, as in the paper."""
        return (10,) * len(self.measure_names)

    @property
    def qd_offset(self) -> float:
        """What is subtracted from every objective before summing the QD-score; to be reported beside it."""
        return 0.0

    @property
    def simulation_warnings(self) -> set[str]:
        """What a user should know of the simulations so far, a sentence each."""
        return set()

    def check_measures(self, found: NumpyArray, when: str) -> None:
        """Raise an InputError unless names, ranges and cells fit together, and measures lie in their ranges.

        Args:
            found: (k,) or other, measures that the task gives.
            when: it does so, in words.
        """
        names, ranges = self.measure_names, self.measure_ranges
        try:
            pairs = np.array(ranges, float)
            finite = pairs.shape == (len(names), 2) and np.isfinite(pairs).all()
            whole = bool(finite and (pairs[:, 0] < pairs[:, 1]).all())
        except (TypeError, ValueError, IndexError):
            whole = False
        if not names or not whole:
            raise InputError(
                f"{self.name}: measure_ranges must be a finite pair (low, high) for each of measure_names "
                f"({', '.join(map(str, names)) or 'there are none'}), got {ranges}."
            )
        shape = self.archive_shape
        if len(shape) != len(names) or any(size < 1 for size in shape):
            raise InputError(f"{self.name}: archive_shape must tell cells of all measures, got {shape}.")
        if found.shape != (len(names),):
            raise InputError(
                f"{self.name}: {when}, measures must have shape ({len(names)},) for {', '.join(names)}, got "
                f"{found.shape}: {found.tolist()}."
            )
        for name, value, (low, high) in zip(names, found.tolist(), ranges, strict=True):
            slack = ROUNDING * max(abs(low), abs(high))
            if not low - slack <= value <= high + slack:  # NaN does not
                raise InputError(
                    f"{self.name}: {when}, {name!r} is {value:g}, which is not within its range "
                    f"[{low:g}, {high:g}] (all measures: {found.tolist()}). Mend what measures it, or widen "
                    "measure_ranges."
                )

    def reset(self, key: Array, n: int) -> TaskState:
        """Place n environments at random starts, by one key or by (n,) keys, one for each."""
        at_least_one("the number of environments", n)
        return self._place(key if key.ndim else jax.random.split(key, n), None)

    def step(self, state: TaskState, action: Array) -> TaskState:
        """One control step under actions (n, action_size) in [-1, 1].

        Finished environments stay as they are, with reward and proxies 0, until `restart`.
        """
        action = jnp.asarray(action)
        expected = (len(state.steps), self.action_size)
        if action.shape != expected:
            raise InputError(f"{self.name} takes actions of shape {expected}, got {action.shape}.")
        return self._step(state, jnp.clip(action, -1.0, 1.0))

    def restart(self, state: TaskState, key: Array) -> TaskState:
        """Finished environments at new random starts, the others as they are.

        Args:
            state: of n environments.
            key: one for all, or (n,), one for each.
        """

        def fresh(state: TaskState) -> TaskState:
            keys = key if key.ndim else jax.random.split(key, len(state.steps))
            return select(state.finished, self._place(keys, state), state)

        restarted: TaskState = jax.lax.cond(state.finished.any(), fresh, lambda state: state, state)
        return restarted

    @abstractmethod
    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        """Environments at random starts by their keys (n,); if there were some before, only those of them
        that are finished need to be placed.
        """

    @abstractmethod
    def _step(self, state: TaskState, action: Array) -> TaskState:
        """One control step under actions within [-1, 1]."""

    def moved(
        self, state: TaskState, bodies: Any, observation: Array, reward: Array, proxies: Array,
        terminated: Array, truncated: Array | None = None, failed: Array | None = None, stay: Any = None,
    ) -> TaskState:  # fmt: skip
        """The state after a step of those that were not finished; what is not finite counts as diverged.

        Args:
            state: before it.
            bodies: after it.
            observation: (n, observation_size) after it.
            reward: (n,) of it.
            proxies: (n, k) of it.
            terminated: (n,) bool, ended by the task's rule.
            truncated: (n,) bool, cut off by somebody else before the episode's length.
            failed: (n,) bool, could not be stepped.
            stay: bodies of those that took no step; as they were before by default.
        """
        active = ~state.finished
        finite = (
            jnp.isfinite(observation).all(axis=1) & jnp.isfinite(reward) & jnp.isfinite(proxies).all(axis=1)
        )
        good = finite if failed is None else finite & ~failed
        lived, lost = active & good, active & ~good
        steps = state.steps + lived
        over = steps >= self.episode_length
        after = TaskState(
            bodies=bodies,
            observation=observation,
            reward=reward,
            proxies=proxies,
            terminated=terminated,
            truncated=(over if truncated is None else over | truncated) & ~terminated,
            diverged=jnp.zeros_like(good),
            steps=steps,
        )
        still = replace(
            state,
            bodies=state.bodies if stay is None else stay,
            reward=jnp.zeros_like(state.reward),
            proxies=jnp.zeros_like(state.proxies),
            terminated=state.terminated | lost,
            diverged=state.diverged | lost,
        )
        return select(lived, after, still)

    def measures(self, total: Array, steps: Array) -> Array:
        """Measures (n, k) of episodes from the sums (n, k) of their proxies and the steps (n,) they lived.

        The mean, unless the task says otherwise.
        """
        return total / jnp.maximum(steps, 1)[:, None]

    def pose(self, state: TaskState) -> Array:
        """Joint positions (n, nq) of the model; nothing (n, 0) if there is none to draw."""
        return jnp.zeros((len(state.steps), 0))

    @property
    def has_feet(self) -> bool:
        """Whether the proxies tell which foot touches the floor."""
        return False

    def drawable(self) -> mujoco.MjModel:
        """The model, or an InputError that there is none."""
        if self.model is None:
            raise InputError(f"{self.name} has no MuJoCo model, so there is no robot to draw.")
        return self.model

    def callers(self, n: int) -> int:  # noqa: ARG002
        """How many threads should share n environments, each stepping its own, to step them fastest."""
        return 1

    def for_callers(self, callers: int) -> "Environment":  # noqa: ARG002
        """The same, for so many threads that step environments of their own at the same time."""
        return self

    def started(self, bodies: Any, observation: Array, failed: Array | None = None) -> TaskState:
        """The state of n environments before their first step.

        An environment that failed to start, or whose observation is not finite, has an episode of no steps,
        ended by divergence; its observation is all zeros, so that nothing computed from it is NaN.

        Args:
            bodies: the simulations.
            observation: (n, observation_size).
            failed: (n,) bool, could not be started.
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
