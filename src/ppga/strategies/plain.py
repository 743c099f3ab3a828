"""The state of pyribs' emitters and strategies as plain arrays, to be saved without pickling."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from ribs.archives import ArchiveBase

from ppga.errors import InputError
from ppga.storage import Like, NumpyArray, check_arrays, parse_json

_NUMBERS = (bool, int, float, np.generic)
_FLEETING = ("_solutions", "_jacobian_batch")
"""What lives between a question and its answer only."""
_SIZES = ("batch_size", "solution_dim", "_batch_size", "_solution_dim", "_num_coefficients")
"""What follows from the run's settings, and never changes."""


def plain_state(thing: Any) -> dict[str, NumpyArray]:
    """All numbers, arrays and random generators inside an object of pyribs, archives left out."""
    state: dict[str, NumpyArray] = {}
    for name, value in vars(thing).items():
        if name in _FLEETING:
            continue
        if isinstance(value, np.ndarray) and value.dtype != object:
            state[name] = value.copy()
        elif isinstance(value, _NUMBERS):
            state[name] = np.asarray(value)
        elif isinstance(value, np.random.Generator):
            text = json.dumps(value.bit_generator.state)
            state[name] = np.frombuffer(text.encode(), np.uint8).copy()
        elif _inside(value):
            state |= {f"{name}.{inner}": values for inner, values in plain_state(value).items()}
    return state


def load_plain_state(thing: Any, state: Mapping[str, NumpyArray]) -> None:
    """Go on from a `plain_state` of an object that was made in the same way.

    Raises:
        InputError: it cannot be the state of such an object.
    """
    fresh = plain_state(thing)
    check_arrays(state, {name: _expected(name, state.get(name, old), old) for name, old in fresh.items()})
    for name, old in fresh.items():
        if name.rpartition(".")[2] in _SIZES and state[name] != old:
            raise InputError(f"{name} is {state[name]}, expected {old}.")
        if np.isfinite(old).all() and not np.isfinite(state[name]).all():
            raise InputError(f"{name} has values that are not finite.")
    _load(thing, state)


def _expected(name: str, found: NumpyArray, fresh: NumpyArray) -> Like:
    """Kind and shape that an array must have, by what it is in a new object: precision may change later."""
    if fresh.dtype == np.uint8:  # a random generator's state, a text of any length
        return fresh.dtype, (found.size,)
    same = found.dtype.kind == fresh.dtype.kind or name.endswith(
        "condition_number"
    )  # 1 at first, then a float
    return found.dtype if same else fresh.dtype, fresh.shape


def _load(thing: Any, state: Mapping[str, NumpyArray]) -> None:
    for name, value in vars(thing).items():
        if isinstance(value, np.random.Generator):
            try:
                value.bit_generator.state = parse_json(state[name].tobytes())
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise InputError(f"the random generator {name!r} cannot go on: {error}.") from None
        elif _inside(value):
            prefix = f"{name}."
            _load(value, {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
        elif name in state:  # None in a new object may be an array in one that has worked
            kept = state[name]
            array = isinstance(value, np.ndarray) or kept.ndim
            setattr(thing, name, kept.copy() if array else kept.item() if _python(value) else kept[()])


def _inside(value: Any) -> bool:
    """Whether an object is a part of pyribs with a state of its own."""
    module = type(value).__module__
    return (
        module.split(".")[0] == "ribs" and hasattr(value, "__dict__") and not isinstance(value, ArchiveBase)
    )


def _python(value: Any) -> bool:
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)
