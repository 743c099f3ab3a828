"""A problem with known gradients: the sphere with linear projections, solved in fractions of a second.

From Fontaine et al., "Covariance matrix adaptation for the rapid illumination of behavior space" (GECCO
2020): a bowl whose minimum is off center, and measures that sum halves of the coordinates, each clipped in a
way that makes the corners of the measure space hard to reach. Outside +-5.12, a coordinate x counts 5.12^2/x
here, which is continuous, and 5.12/x in the paper and in pyribs' example: scores do not compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.physics import Array
from ppga.problems.base import Cost, Evaluation, LearningReport, unit_rows
from ppga.storage import NumpyArray, check_arrays
from ppga.tasks import SPHERE

BOUND = 5.12
OPTIMUM = 0.4 * BOUND


@dataclass(frozen=True)
class Sphere:
    """The problem; its state is the search point (d,).

    Attributes:
        solution_size: coordinates d, an even number.
        walk_length: length of a walk, all updates together, for weights of length 1.
    """

    solution_size: int = 20
    walk_length: float = 1.0
    measure_names: tuple[str, ...] = ("first half", "second half")
    qd_offset: float = 0.0
    warmup_steps: int = 0
    checkpoint_due: bool = False
    simulation_warnings: frozenset[str] = frozenset()

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """The measures' extremes."""
        extreme = BOUND * self.solution_size / 2
        return ((-extreme, extreme), (-extreme, extreme))

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Cells along each measure."""
        return (20, 20)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Nothing is stored besides the solution."""
        return {}

    def describe(self) -> dict[str, Any]:
        """For files."""
        return {"task": {"name": SPHERE, "dimensions": self.solution_size}, "network": None}

    def values(self, point: Array) -> Array:
        """(3,): objective (at most 100), then the two measures, of a point (d,)."""
        worst = self.solution_size * (BOUND + OPTIMUM) ** 2
        objective = 100 * (1 - jnp.square(point - OPTIMUM).sum() / worst)
        clipped = jnp.where(jnp.abs(point) <= BOUND, point, BOUND**2 / jnp.where(point == 0, 1, point))
        halves = clipped.reshape(2, -1).sum(axis=1)
        return jnp.concatenate([objective[None], halves])

    def init(self, key: Array) -> Array:
        """A point near the origin."""
        return 0.01 * jax.random.normal(key, (self.solution_size,))

    def random(self, key: Array, n: int) -> NumpyArray:
        """Points (n, d) around the origin."""
        return np.asarray(jax.random.normal(key, (n, self.solution_size)))

    def open(self, folder: Path | None) -> None:
        """No files are needed."""

    def external_state(self) -> dict[str, NumpyArray]:
        """Empty."""
        return {}

    def load_external_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Check that the state is empty."""
        check_arrays(state, {})

    def stored_fields(self, state: Array) -> dict[str, NumpyArray]:  # noqa: ARG002
        """Empty."""
        return {}

    def evaluate(
        self,
        state: Array | None,  # noqa: ARG002
        solutions: NumpyArray,
        key: Array,  # noqa: ARG002
        episodes: int,  # noqa: ARG002
        active: NumpyArray | None = None,
    ) -> Evaluation:
        """The exact values; each counts as one episode."""
        values = np.asarray(_all_values(self, jnp.asarray(solutions)))
        count = len(values) if active is None else int(active.sum())
        objective, measures = values[:, 0], values[:, 1:]
        ones, zeros = np.ones_like(objective), np.zeros_like(objective)
        return Evaluation(objective, zeros, measures, np.zeros_like(measures), ones, ones, 0, count, count)

    def evaluate_elites(
        self, elites: Mapping[str, NumpyArray], key: Array, episodes: int, active: NumpyArray
    ) -> Evaluation:
        """The exact values again."""
        return self.evaluate(None, elites["solution"], key, episodes, active)

    def cost(self, policies: int, updates: int = 0) -> Cost:  # noqa: ARG002
        """Nothing is simulated."""
        return Cost(policies)

    def solution(self, state: Array) -> NumpyArray:
        """The search point."""
        return np.asarray(state)

    def jacobian(
        self,
        state: Array,
        key: Array,  # noqa: ARG002
        updates: int,  # noqa: ARG002
    ) -> tuple[Array, NumpyArray, LearningReport]:
        """The exact gradients."""
        return state, np.asarray(_jacobian(self, state)), LearningReport()

    def walk(
        self,
        state: Array,
        weights: NumpyArray,
        key: Array,
        updates: int,
        scaled: bool,  # noqa: ARG002
    ) -> tuple[Array, LearningReport]:
        """Move by `walk_length` times the length of the weights, with new gradients in every update."""
        for _ in range(updates):
            _, gradients, _ = self.jacobian(state, key, 1)
            step = weights @ unit_rows(gradients)[0]
            state = state + jnp.asarray(self.walk_length / updates * step, state.dtype)
        return state, LearningReport()

    def scale_exploration_noise(self, state: Array, factor: float, low: float, high: float) -> Array:  # noqa: ARG002
        """There is no noise."""
        return state

    def place(self, state: Array, solution: NumpyArray, key: Array) -> tuple[Array, LearningReport]:  # noqa: ARG002
        """Set the search point."""
        return jnp.asarray(solution, state.dtype), LearningReport()

    def restart(self, state: Array, elite: Mapping[str, NumpyArray], key: Array) -> Array:  # noqa: ARG002
        """Continue from an elite."""
        return jnp.asarray(elite["solution"], state.dtype)

    def start_at(self, state: Array, elite: Mapping[str, NumpyArray], key: Array) -> Array:
        """Continue from an elite of another run."""
        return self.restart(state, elite, key)

    def reset_nonfinite(self, state: Array, key: Array) -> tuple[Array, NumpyArray]:  # noqa: ARG002
        """There are no learners."""
        return state, np.zeros(0, bool)


@partial(jax.jit, static_argnums=0)
def _all_values(problem: Sphere, points: Array) -> Array:
    return jnp.asarray(jax.vmap(problem.values)(points))


@partial(jax.jit, static_argnums=0)
def _jacobian(problem: Sphere, point: Array) -> Array:
    return jnp.asarray(jax.jacrev(problem.values)(point))
