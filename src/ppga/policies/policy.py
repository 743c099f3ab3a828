"""Gaussian policies: a network maps normalized observations to the mean action.

The functions are written for one policy. Arrays of many policies have leading axes, such as agents or
branches, and `jax.vmap` maps the functions over them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ppga.physics import Array
from ppga.policies.network import Layers, Network
from ppga.policies.normalizer import NormalizerState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """A policy: parameters, exploration noise and normalizer.

    Attributes:
        parameters: (d,) parameters theta of the actor network.
        log_std: (a,) logarithm of the exploration noise's standard deviation; not part of the solution.
        normalizer: normalizer of the observations.
    """

    parameters: Array
    log_std: Array
    normalizer: NormalizerState

    @staticmethod
    def of_elite(elite: Mapping[str, Any]) -> "Policy":
        """The policy of an elite, by its fields in an archive: solution, exploration noise and normalizer.

        Args:
            elite: arrays by name; with a leading axis n on each of them, those of n elites.
        """
        normalizer = (elite[f"observation_{name}"] for name in ("mean", "variance", "count"))
        return Policy(
            jnp.asarray(elite["solution"]),
            jnp.asarray(elite["log_std"]),
            NormalizerState(*(jnp.asarray(part) for part in normalizer)),
        )

    def mean_action(self, network: Network, observation: Array) -> Array:
        """Actions (n, a) without exploration noise for observations (n, o)."""
        return jnp.asarray(network(self.parameters, self.normalizer.normalize(observation)))


def log_density(noise: Array, log_std: Array) -> Array:
    """Log density (...,) of the action mean + exp(log_std) * noise, for noise (..., a) and log_std (a,)."""
    return (-0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=-1)


def init_mlp(key: Array, sizes: Sequence[int], last_scale: float = 1.0) -> Layers:
    """Initial layers: orthogonal weights with gain sqrt(2), zero biases.

    Args:
        key: random key.
        sizes: inputs, hidden units of each layer, outputs.
        last_scale: gain of the last layer's weights.
    """
    keys = jax.random.split(key, len(sizes) - 1)
    scales = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_scale]
    return [
        (scale * jax.nn.initializers.orthogonal()(key, (inputs, outputs)), jnp.zeros(outputs))
        for key, scale, inputs, outputs in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]


def init_policy(key: Array, network: Network, std: float) -> Policy:
    """An initial policy: mean actions near 0, the same exploration noise for all actions, initial normalizer.

    Args:
        key: random key.
        network: actor network.
        std: standard deviation of the exploration noise.
    """
    parameters = network.flatten(init_mlp(key, network.sizes, last_scale=0.01))
    log_std = jnp.full(network.sizes[-1], math.log(std), jnp.float32)
    return Policy(jnp.asarray(parameters), log_std, NormalizerState.initial(network.sizes[0]))
