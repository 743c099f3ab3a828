"""The state of pyribs' emitters and strategies as plain arrays, to be saved without pickling."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from ribs.archives import ArchiveBase

from ppga.storage import NumpyArray

_NUMBERS = (bool, int, float, np.generic)
_FLEETING = ("_solutions", "_jacobian_batch")
"""What lives between a question and its answer only."""


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
    """Go on from a `plain_state` of an object that was made in the same way."""
    for name, value in vars(thing).items():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = json.loads(bytes(state[name]).decode())
        elif _inside(value):
            prefix = f"{name}."
            load_plain_state(
                value, {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
            )
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
