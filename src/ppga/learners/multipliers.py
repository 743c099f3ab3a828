"""Lagrange multipliers of the constraints that measures equal their targets, as a function of the target.

The function is a mean of values at fixed points, weighted by their distance to the target. Each value is
controlled by how far the measures of nearby targets fall short of them, in proportion to the latest error and
to the sum of all errors (a PI controller; Stooke et al., 2020). The sum alone finds the same multipliers, as
dual ascent does, but takes several times as long.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from ppga.config import check_range, check_whole, common
from ppga.physics import Array
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class MultiplierConfig:
    """Settings of the multipliers.

    Attributes:
        points: number of points, evenly spread over all targets, that have multipliers of their own.
        gain: multiplier per error, in units of a measure's range, of recent rollouts.
        learning_rate: change of the multiplier per error of a rollout.
        smoothing: share of the latest rollout in the error of recent ones.
        limit: largest norm of a target's multipliers; the reward's weight is 1.
    """

    points: int = 256
    gain: float = common(15.0)
    learning_rate: float = 0.02
    smoothing: float = 0.05
    limit: float = common(3.0)

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_whole("multipliers.points", self.points)
        for name in ("gain", "learning_rate", "limit"):
            check_range(f"multipliers.{name}", getattr(self, name))
        check_range("multipliers.smoothing", self.smoothing, 0.0, 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiplierState:
    """Values at M points.

    Attributes:
        sums: (M, k) sums of all errors, times the learning rate.
        errors: (M, k) mean error of recent rollouts.
    """

    sums: Array
    errors: Array


@dataclass(frozen=True)
class Multipliers:
    """Functions of the values at the points; targets and points lie in [-1, 1]^k.

    Attributes:
        config: settings.
        measures: number k of measures.
    """

    config: MultiplierConfig
    measures: int

    @cached_property
    def points(self) -> NumpyArray:
        """The points (M, k), a Sobol sequence."""
        count = self.config.points
        sequence = qmc.Sobol(self.measures, scramble=False).random_base2((count - 1).bit_length())
        points: NumpyArray = (2 * sequence[:count] - 1).astype(np.float32)
        return points

    def initial(self) -> MultiplierState:
        """Values before the first rollout, all 0."""
        zero = jnp.zeros((self.config.points, self.measures))
        return MultiplierState(zero, zero)

    def at(self, state: MultiplierState, targets: Array) -> Array:
        """Multipliers (n, k) of targets (n, k)."""
        return self._weights(targets) @ self._limited(state.sums + self.config.gain * state.errors)

    def updated(
        self, state: MultiplierState, targets: Array, errors: Array, amounts: Array
    ) -> MultiplierState:
        """Values after a rollout.

        Args:
            state: before.
            targets: (n, k).
            errors: (n, k) how far the measures fall short of the targets, in units of their ranges.
            amounts: (n,) how much of a rollout had this target.
        """
        weights = self._weights(targets) * amounts[:, None]  # (n, M)
        mass = weights.sum(axis=0)[:, None]
        mean = weights.T @ errors / jnp.maximum(mass, 1e-6)
        share = jnp.minimum(mass, 1.0)  # a point far from all targets stays as it is
        return MultiplierState(
            sums=self._limited(state.sums + self.config.learning_rate * share * mean),
            errors=state.errors + self.config.smoothing * share * (mean - state.errors),
        )

    def _limited(self, values: Array) -> Array:
        norm = jnp.linalg.norm(values, axis=1, keepdims=True)
        return values * jnp.minimum(1.0, self.config.limit / jnp.maximum(norm, 1e-8))

    def _weights(self, targets: Array) -> Array:
        """Weights (n, M) of the points: Gaussians as wide as half the distance between points, of sum 1."""
        spacing = 2 * self.config.points ** (-1 / self.measures)
        distances = jnp.square(targets[:, None] - self.points).sum(axis=-1)
        return jax.nn.softmax(-distances / (2 * (spacing / 2) ** 2), axis=1)
