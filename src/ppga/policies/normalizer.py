"""Normalization of observations by their running mean and variance."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ppga.physics import Array
from ppga.policies.network import VARIANCE_EPSILON

CLIP = 10.0
"""Normalized observations are clipped to this many standard deviations."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormalizerState:
    """Running mean and variance of observations.

    Attributes:
        mean: (o,) mean of the observations so far.
        variance: (o,) variance of the observations so far.
        count: () number of observations, float32.
    """

    mean: Array
    variance: Array
    count: Array

    @staticmethod
    def initial(size: int) -> "NormalizerState":
        """The state before the first observation: mean 0, variance 1, count 0."""
        return NormalizerState(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

    def normalize(self, values: Array) -> Array:
        """Observations (..., o) shifted and scaled to mean 0 and variance 1, and clipped to [-10, 10]."""
        return jnp.clip((values - self.mean) / jnp.sqrt(self.variance + VARIANCE_EPSILON), -CLIP, CLIP)

    @staticmethod
    def fresh(size: int) -> "NormalizerState":
        """The state that PPGA's authors start with: one observation of 1, with variance 1."""
        return NormalizerState(jnp.ones(size), jnp.ones(size), jnp.ones(()))

    def updated(self, values: Array, counted: Array, axis: str = "") -> "NormalizerState":
        """The state after a batch of observations.

        Args:
            values: (n, o) observations.
            counted: (n,) bool, which of them are used.
            axis: name of the axis of devices that each have a part of the batch; empty for one device.
        """

        def total_over(values: Array) -> Array:
            """Sums over all devices."""
            if not axis:
                return values
            return jnp.asarray(jax.lax.psum(values, axis))  # type: ignore[no-untyped-call]

        n = total_over(counted.sum(dtype=jnp.float32))
        total = self.count + n
        where = counted[:, None]
        mean = total_over(values.sum(axis=0, where=where)) / jnp.maximum(n, 1)
        variance = total_over(jnp.square(values - mean).sum(axis=0, where=where)) / jnp.maximum(n, 1)
        step = mean - self.mean
        share = n / jnp.maximum(total, 1)
        combined = self.variance * (1 - share) + variance * share + jnp.square(step) * share * (1 - share)
        return NormalizerState(self.mean + step * share, combined, total)

    def running(self, values: Array, counted: Array, axis: str = "") -> Array:
        """Observations (e, T, o), each normalized by the state updated up to its own step.

        Args:
            values: (e, T, o) observations of e environments.
            counted: (e, T) bool, which of them are used.
            axis: see `updated`.
        """

        def step(state: "NormalizerState", row: tuple[Array, Array]) -> tuple["NormalizerState", Array]:
            state = state.updated(*row, axis)
            return state, state.normalize(row[0])

        _, normalized = jax.lax.scan(step, self, (jnp.swapaxes(values, 0, 1), counted.T))
        return jnp.swapaxes(normalized, 0, 1)
