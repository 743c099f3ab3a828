"""The state of pyribs' emitters and strategies as plain arrays, to be saved without pickling."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from ribs.archives import ArchiveBase

from ppga.errors import InputError
from ppga.storage import ArraySpec, NumpyArray, check_arrays, parse_json

_NUMBERS = (bool, int, float, np.generic)
_TRANSIENT = ("_solutions", "_jacobian_batch")
"""Attributes that pyribs sets in `ask` and uses in the following `tell` only."""
_SIZES = ("batch_size", "solution_dim", "_batch_size", "_solution_dim", "_num_coefficients")
"""Attributes that follow from the run's settings and never change."""


def plain_state(component: Any) -> dict[str, NumpyArray]:
    """All numbers, arrays and random generators in an object of pyribs, except for archives.

    Args:
        component: an emitter or a strategy.

    Returns:
        Copies, by the names of the attributes; those of objects in attributes by dotted names.
    """
    state: dict[str, NumpyArray] = {}
    for name, value in vars(component).items():
        if name in _TRANSIENT:
            continue
        if isinstance(value, np.ndarray) and value.dtype != object:
            state[name] = value.copy()
        elif isinstance(value, _NUMBERS):
            state[name] = np.asarray(value)
        elif isinstance(value, np.random.Generator):
            text = json.dumps(value.bit_generator.state)
            state[name] = np.frombuffer(text.encode(), np.uint8).copy()
        elif _has_state(value):
            state |= {f"{name}.{inner}": values for inner, values in plain_state(value).items()}
    return state


def load_plain_state(component: Any, state: Mapping[str, NumpyArray]) -> None:
    """Restore a `plain_state` in a new object with the same settings.

    Raises:
        InputError: it cannot be the state of such an object.
    """
    fresh = plain_state(component)
    check_arrays(state, {name: _expected(name, state.get(name, old), old) for name, old in fresh.items()})
    for name, old in fresh.items():
        if name.rpartition(".")[2] in _SIZES and state[name] != old:
            raise InputError(f"{name} is {state[name]}, expected {old}.")
        if np.isfinite(old).all() and not np.isfinite(state[name]).all():
            raise InputError(f"{name} has values that are not finite.")
    _load(component, state)


def _expected(name: str, saved: NumpyArray, fresh: NumpyArray) -> ArraySpec:
    """Type and shape that a saved array must have, given the array of a new object; precision may differ."""
    if fresh.dtype == np.uint8:  # a random generator's state: JSON of any length
        return fresh.dtype, (saved.size,)
    # a condition number is the integer 1 in a new object, and a float later
    same_kind = saved.dtype.kind == fresh.dtype.kind or name.endswith("condition_number")
    return saved.dtype if same_kind else fresh.dtype, fresh.shape


def _load(component: Any, state: Mapping[str, NumpyArray]) -> None:
    for name, value in vars(component).items():
        if isinstance(value, np.random.Generator):
            try:
                value.bit_generator.state = parse_json(state[name].tobytes())
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise InputError(f"the random generator {name!r} cannot be restored: {error}.") from None
        elif _has_state(value):
            prefix = f"{name}."
            _load(value, {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
        elif name in state:
            saved = state[name]
            array = isinstance(value, np.ndarray) or saved.ndim
            setattr(component, name, saved.copy() if array else saved.item() if _python(value) else saved[()])


def _has_state(value: Any) -> bool:
    """Whether an attribute is an object of pyribs with a state of its own."""
    module = type(value).__module__
    return (
        module.split(".")[0] == "ribs" and hasattr(value, "__dict__") and not isinstance(value, ArchiveBase)
    )


def _python(value: Any) -> bool:
    """Whether a number is one of Python's own types."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


class RibsState:
    """The state of an object of pyribs, as a component of an algorithm.

    Args:
        part: the emitter or strategy.
    """

    def __init__(self, part: Any) -> None:
        self.part = part

    def state(self) -> dict[str, NumpyArray]:
        """Named arrays for checkpoints."""
        return plain_state(self.part)

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`, or raise an InputError if it cannot be one."""
        load_plain_state(self.part, state)
