"""Multilayer perceptrons whose parameters are one flat vector; for arrays of NumPy and of JAX."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

VARIANCE_EPSILON = 1e-8
"""Added to the variance of observations, whose root divides the inputs of a policy."""
Layers = list[tuple[Any, Any]]
"""Weights (inputs, outputs) and biases (outputs,) of each layer."""
Activation = Literal["tanh", "relu"]
Head = Literal["linear", "tanh", "gaussian"]


@dataclass(frozen=True)
class Network:
    """An MLP.

    Flat order: the weights of the first layer, row by row, its biases, then the next layer.

    Attributes:
        sizes: inputs, hidden units of each layer, outputs.
        activation: activation function between the layers.
        head: function of the last layer's outputs: identity (linear), tanh, or tanh of the first half,
            where the second half parametrizes a Gaussian's standard deviation (gaussian).
    """

    sizes: tuple[int, ...]
    activation: Activation = "tanh"
    head: Head = "linear"

    @staticmethod
    def of(description: Mapping[str, Any]) -> "Network":
        """The network of a `describe()`, as files contain it."""
        return Network(
            tuple(description["sizes"]),
            description.get("activation", "tanh"),
            description.get("head", "linear"),
        )

    def describe(self) -> dict[str, Any]:
        """Sizes, activation and head as plain values, for files."""
        return {"sizes": list(self.sizes), "activation": self.activation, "head": self.head}

    @property
    def parameters(self) -> int:
        """Size d of the flat parameter vector."""
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(self.sizes))

    @property
    def outputs(self) -> int:
        """Number of outputs after the head."""
        return self.sizes[-1] // 2 if self.head == "gaussian" else self.sizes[-1]

    def layers(self, flat: Any) -> Layers:
        """The layers of flat parameter vectors (..., d)."""
        layers, start = [], 0
        for inputs, outputs in itertools.pairwise(self.sizes):
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            layers.append(
                (flat[..., start:middle].reshape(*flat.shape[:-1], inputs, outputs), flat[..., middle:end])
            )
            start = end
        return layers

    def flatten(self, layers: Layers) -> Any:
        """The flat parameter vectors (..., d) of layers."""
        xp = layers[0][0].__array_namespace__()
        parts = [
            part
            for weights, biases in layers
            for part in (weights.reshape(*weights.shape[:-2], math.prod(weights.shape[-2:])), biases)
        ]
        return xp.concat(parts, axis=-1)

    def __call__(self, flat: Any, inputs: Any) -> Any:
        """Outputs (n, outputs) for parameters (d,) and inputs (n, inputs)."""
        raw = self.raw(flat, inputs)
        xp = raw.__array_namespace__()
        return raw if self.head == "linear" else xp.tanh(raw[..., : self.outputs])

    def raw(self, flat: Any, inputs: Any) -> Any:
        """Outputs (n, sizes[-1]) of the last layer, before the head."""
        return apply_mlp(self.layers(flat), inputs, self.activation)


def apply_mlp(layers: Layers, inputs: Any, activation: Activation = "tanh") -> Any:
    """Outputs (..., outputs) of layers for inputs (..., inputs), without a head."""
    xp = inputs.__array_namespace__()
    *hidden, (weights, biases) = layers
    for hidden_weights, hidden_biases in hidden:
        sums = inputs @ hidden_weights + hidden_biases
        inputs = xp.tanh(sums) if activation == "tanh" else xp.maximum(sums, xp.zeros_like(sums))
    return inputs @ weights + biases
