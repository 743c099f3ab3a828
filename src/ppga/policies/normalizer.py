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

    def updated(self, values: Array, counted: Array) -> "NormalizerState":
        """The state after a batch of observations.

        Args:
            values: (n, o) observations.
            counted: (n,) bool, which of them are used.
        """
        n = counted.sum(dtype=jnp.float32)
        total = self.count + n
        where = counted[:, None]
        mean = values.sum(axis=0, where=where) / jnp.maximum(n, 1)
        variance = jnp.square(values - mean).sum(axis=0, where=where) / jnp.maximum(n, 1)
        step = mean - self.mean
        share = n / jnp.maximum(total, 1)
        combined = self.variance * (1 - share) + variance * share + jnp.square(step) * share * (1 - share)
        return NormalizerState(self.mean + step * share, combined, total)
