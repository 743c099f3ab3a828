"""Policies: a Gaussian around what a network makes of normalised observations.

All arrays may carry leading axes (agents, branches); the functions here are written for one policy and mapped
over those with `jax.vmap`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ppga.networks import Layers, Network, apply_mlp
from ppga.physics import Array

__all__ = ["Layers", "Moments", "Network", "Policy", "apply_mlp", "init_mlp", "init_policy"]

CLIP = 10.0
"""Normalised observations are clipped to this many standard deviations."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moments:
    """Running mean and variance, the observation normaliser.

    Attributes:
        mean: (o,)
        variance: (o,)
        count: () how many samples they stand for, float32.
    """

    mean: Array
    variance: Array
    count: Array

    @staticmethod
    def unknown(size: int) -> "Moments":
        """Nothing seen yet: mean 0, variance 1."""
        return Moments(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

    def normalise(self, values: Array) -> Array:
        """Values (..., o) with mean 0 and variance 1, clipped to +-10."""
        return jnp.clip((values - self.mean) / jnp.sqrt(self.variance + 1e-8), -CLIP, CLIP)

    def updated(self, values: Array, counted: Array) -> "Moments":
        """With a batch of values (n, o) added, of which only the `counted` (n,) are used."""
        n = counted.sum(dtype=jnp.float32)
        total = self.count + n
        where = counted[:, None]
        mean = values.sum(axis=0, where=where) / jnp.maximum(n, 1)
        variance = jnp.square(values - mean).sum(axis=0, where=where) / jnp.maximum(n, 1)
        step = mean - self.mean
        share = n / jnp.maximum(total, 1)
        spread = self.variance * (1 - share) + variance * share + jnp.square(step) * share * (1 - share)
        return Moments(self.mean + step * share, spread, total)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """All one needs to act.

    Attributes:
        parameters: (d,) of the actor network, theta.
        log_std: (a,) logarithm of the action noise's standard deviation; not part of what is branched.
        observation: normaliser of what the network sees.
    """

    parameters: Array
    log_std: Array
    observation: Moments

    @staticmethod
    def of_elite(elite: Mapping[str, Any]) -> "Policy":
        """The policy that an archive keeps: its solution, action noise and normaliser."""
        normaliser = (elite[f"observation_{name}"] for name in ("mean", "variance", "count"))
        return Policy(
            jnp.asarray(elite["solution"]),
            jnp.asarray(elite["log_std"]),
            Moments(*(jnp.asarray(part) for part in normaliser)),
        )

    def mean_action(self, network: Network, observation: Array) -> Array:
        """Actions (n, a) without noise for observations (n, o)."""
        return jnp.asarray(network(self.parameters, self.observation.normalise(observation)))


def log_density(noise: Array, log_std: Array) -> Array:
    """Log density (...,) of mean + exp(log_std) * noise under the Gaussian, for noise (..., a)."""
    return (-0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=-1)


def init_mlp(key: Array, sizes: Sequence[int], last_scale: float = 1.0) -> Layers:
    """Layers of the given sizes: orthogonal weights, zero biases; the last layer's weights are scaled."""
    keys = jax.random.split(key, len(sizes) - 1)
    scales = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_scale]
    return [
        (scale * jax.nn.initializers.orthogonal()(key, (inputs, outputs)), jnp.zeros(outputs))
        for key, scale, inputs, outputs in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]


def init_policy(key: Array, network: Network, std: float) -> Policy:
    """A policy that hardly acts, with the given action noise and an unknowing normaliser."""
    parameters = network.flatten(init_mlp(key, network.sizes, last_scale=0.01))
    log_std = jnp.full(network.sizes[-1], math.log(std), jnp.float32)
    return Policy(jnp.asarray(parameters), log_std, Moments.unknown(network.sizes[0]))
