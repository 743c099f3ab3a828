"""Warnings about a search that has degenerated."""

from ppga.storage import NumpyArray
from ppga.strategies import Strategy

EXPLODED = 50.0
"""A step size above this many times sigma0 is reported."""
SHORT_ROW = 1e-4
"""A gradient shorter than this is reported."""


def search_warnings(
    strategy: Strategy, sigma0: float, lengths: NumpyArray, measure_names: tuple[str, ...]
) -> list[str]:
    """Warnings about the search distribution and about the lengths (k+1,) of the gradients."""
    warnings = []
    if strategy.scale > EXPLODED * sigma0:
        warnings.append(f"the strategy's step size has grown (to {strategy.scale:.3g})")
    for name, length in zip(("reward", *measure_names), lengths, strict=False):
        if not length > SHORT_ROW:
            warnings.append(f"the gradient of {name} is nearly zero ({length:.1g})")
    return warnings
