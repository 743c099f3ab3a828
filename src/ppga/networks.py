"""Multilayer perceptrons whose parameters are one flat vector; the same code runs on NumPy and on JAX
arrays.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

Layers = list[tuple[Any, Any]]
"""Weights (inputs, outputs) and biases (outputs,) of each layer."""


@dataclass(frozen=True)
class Network:
    """An MLP with tanh between its layers.

    Flat order: the weights of the first layer, row by row, its biases, then the next layer.

    Attributes:
        sizes: inputs, hidden units of each layer, outputs.
    """

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many numbers d make up the flat vector."""
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(self.sizes))

    def layers(self, flat: Any) -> Layers:
        """The layers in a flat vector (..., d)."""
        layers, start = [], 0
        for inputs, outputs in itertools.pairwise(self.sizes):
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            layers.append(
                (flat[..., start:middle].reshape(*flat.shape[:-1], inputs, outputs), flat[..., middle:end])
            )
            start = end
        return layers

    def flatten(self, layers: Layers) -> Any:
        """The flat vector (..., d) of the layers."""
        xp = layers[0][0].__array_namespace__()
        parts = [
            part
            for weights, biases in layers
            for part in (weights.reshape(*weights.shape[:-2], math.prod(weights.shape[-2:])), biases)
        ]
        return xp.concat(parts, axis=-1)

    def __call__(self, flat: Any, inputs: Any) -> Any:
        """Outputs (n, outputs) for inputs (n, inputs), under parameters (d,)."""
        return apply_mlp(self.layers(flat), inputs)


def apply_mlp(layers: Layers, inputs: Any) -> Any:
    """Outputs (..., outputs) for inputs (..., inputs), tanh between the layers."""
    xp = inputs.__array_namespace__()
    *hidden, (weights, biases) = layers
    for hidden_weights, hidden_biases in hidden:
        inputs = xp.tanh(inputs @ hidden_weights + hidden_biases)
    return inputs @ weights + biases
