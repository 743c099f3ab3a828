"""Policies: networks from observations to actions in [-1, 1]."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ppga.physics import Array

Layers = list[tuple[Array, Array]]
"""Weights (inputs, outputs) and biases (outputs,) of each layer."""


def init_mlp(key: Array, sizes: Sequence[int], last_scale: float = 1.0) -> Layers:
    """Layers of the given sizes: orthogonal weights, zero biases; the last layer's weights are scaled."""
    keys = jax.random.split(key, len(sizes) - 1)
    scales = [jnp.sqrt(2.0)] * (len(sizes) - 2) + [last_scale]
    return [
        (scale * jax.nn.initializers.orthogonal()(key, (inputs, outputs)), jnp.zeros(outputs))
        for key, scale, inputs, outputs in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_mlp(layers: Layers, inputs: Array) -> Array:
    """Outputs (..., outputs) for inputs (..., inputs), tanh between the layers."""
    *hidden, (weights, biases) = layers
    for hidden_weights, hidden_biases in hidden:
        inputs = jnp.tanh(inputs @ hidden_weights + hidden_biases)
    return inputs @ weights + biases
