"""A problem with known gradients: the sphere with linear projections, in fractions of a second.

From Fontaine et al., "Covariance matrix adaptation for the rapid illumination of behavior space" (GECCO
2020): a bowl whose minimum is off centre, and measures that add up halves of the coordinates, each counted up
to +-5.12 and bent back beyond, so that the corners of the measure space are hard to reach. Beyond, a
coordinate x counts 5.12^2/x here, so that nothing jumps, and 5.12/x there and in pyribs' example: scores do
not compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.algorithms.base import SearchConfig
from ppga.algorithms.problem import Effort, Judgement, unit_rows
from ppga.physics import Array
from ppga.storage import NumpyArray, check_arrays

BOUND = 5.12
OPTIMUM = 0.4 * BOUND


@dataclass(frozen=True)
class Sphere:
    """The problem; its state is the search points (m, d).

    Attributes:
        search: how points are branched and walked.
        solution_size: coordinates d, an even number.
        reach: length of the whole walk for weights of length 1.
    """

    search: SearchConfig
    solution_size: int = 20
    reach: float = 1.0
    measure_names: tuple[str, ...] = ("first half", "second half")
    qd_offset: float = 0.0
    start_steps: int = 0
    due: bool = False

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """The measures can reach this far."""
        reach = BOUND * self.solution_size / 2
        return ((-reach, reach), (-reach, reach))

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """Cells along each measure."""
        return (20, 20)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Nothing is kept besides the solution."""
        return {}

    def describe(self) -> dict[str, Any]:
        """For files."""
        return {"task": {"name": "sphere", "dimensions": self.solution_size}, "network": None}

    def values(self, point: Array) -> Array:
        """Objective, from 0 to 100, and measures (3,) of a point (d,)."""
        worst = self.solution_size * (BOUND + OPTIMUM) ** 2
        objective = 100 * (1 - jnp.square(point - OPTIMUM).sum() / worst)
        folded = jnp.where(jnp.abs(point) <= BOUND, point, BOUND**2 / jnp.where(point == 0, 1, point))
        halves = folded.reshape(2, -1).sum(axis=1)
        return jnp.concatenate([objective[None], halves])

    def start(self, key: Array) -> Array:
        """All points at the origin, but for a little noise."""
        return 0.01 * jax.random.normal(key, (self.search.emitters, self.solution_size))

    def random(self, key: Array, n: int) -> NumpyArray:
        """Points near the origin."""
        return np.asarray(jax.random.normal(key, (n, self.solution_size)))

    def open(self, folder: Path | None) -> None:
        """Nothing is large."""

    def aside(self) -> dict[str, NumpyArray]:
        """Nothing."""
        return {}

    def load_aside(self, aside: Mapping[str, NumpyArray]) -> None:
        """Nothing."""
        check_arrays(aside, {})

    def solutions(self, state: Array) -> NumpyArray:
        """The points."""
        return np.asarray(state)

    def kept(self, state: Array) -> dict[str, NumpyArray]:  # noqa: ARG002
        """Nothing."""
        return {}

    def jacobian(self, state: Array, key: Array) -> tuple[Array, NumpyArray, Effort]:  # noqa: ARG002
        """The true gradients."""
        return state, np.asarray(_jacobians(self, state)), Effort()

    def judge(
        self,
        state: Array | None,  # noqa: ARG002
        solutions: NumpyArray,
        key: Array,  # noqa: ARG002
        episodes: int | None = None,  # noqa: ARG002
        playing: NumpyArray | None = None,
    ) -> Judgement:
        """The true values, which no second look would change."""
        values = np.asarray(_all_values(self, jnp.asarray(solutions.reshape(-1, self.solution_size))))
        played = len(values) if playing is None else int(playing.sum())
        return Judgement(values[:, 0], values[:, 1:], np.zeros_like(values[:, 1:]), 0, played, played)

    def judge_elites(
        self, elites: Mapping[str, NumpyArray], key: Array, episodes: int, playing: NumpyArray
    ) -> Judgement:
        """The true values again."""
        return self.judge(None, elites["solution"], key, episodes, playing)

    def walk(
        self, state: Array, weights: NumpyArray, key: Array, updates: int | None = None
    ) -> tuple[Array, Effort]:
        """As far as the weights are long, along directions that are found anew after each step."""
        updates = updates or self.search.walk_updates
        for _ in range(updates):
            _, gradients, _ = self.jacobian(state, key)
            way = np.einsum("mi,mid->md", weights, unit_rows(gradients)[0])
            state = state + jnp.asarray(self.reach / updates * way, state.dtype)
        return state, Effort()

    def stir(self, state: Array, factors: NumpyArray) -> Array:  # noqa: ARG002
        """There is no noise."""
        return state

    def place(self, state: Array, solutions: NumpyArray, key: Array) -> tuple[Array, Effort]:  # noqa: ARG002
        """Put all points elsewhere."""
        return jnp.asarray(solutions, state.dtype), Effort()

    def move(self, state: Array, emitter: int, elite: dict[str, NumpyArray], key: Array) -> Array:  # noqa: ARG002
        """Put a point at an elite."""
        return state.at[emitter].set(elite["solution"])


@partial(jax.jit, static_argnums=0)
def _all_values(problem: Sphere, points: Array) -> Array:
    return jnp.asarray(jax.vmap(problem.values)(points))


@partial(jax.jit, static_argnums=0)
def _jacobians(problem: Sphere, points: Array) -> Array:
    return jnp.asarray(jax.vmap(jax.jacrev(problem.values))(points))
