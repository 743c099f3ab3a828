"""Calls of host functions that write into arrays in place, from inside jitted JAX code."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

Array = jax.Array
HostArray = np.ndarray[Any, np.dtype[Any]]
HostFunction = Callable[..., None]
"""(list of output arrays to fill, *input arrays) -> None; the inputs are read-only."""


def call_host(
    function: HostFunction, outputs: list[tuple[tuple[int, ...], Any]], *inputs: Array
) -> list[Array]:
    """Call a host function and return the outputs that it fills.

    The function must be pure: XLA may repeat calls, omit them, or run two at once. On CPUs it gets XLA's own
    buffers, and a call costs tens of microseconds; on other devices, arrays are copied to the host and back.

    Args:
        function: fills the outputs.
        outputs: shapes and types of the outputs.
        *inputs: arrays that the function reads.
    """
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs]  # type: ignore[no-untyped-call]

    def in_place(context: Any, out: Any, *buffers: Any) -> None:  # noqa: ARG001
        function([np.asarray(array) for array in out], *(np.asarray(array) for array in buffers))

    def by_copies(*copies: Any) -> list[HostArray]:
        out = [np.empty(shape, dtype) for shape, dtype in outputs]
        function(out, *(np.asarray(array) for array in copies))
        return out

    results: list[Array] = jax.lax.platform_dependent(
        *inputs,
        cpu=lambda *args: buffer_callback(in_place, shapes, vmap_method="sequential")(*args),
        default=lambda *args: jax.pure_callback(by_copies, shapes, *args, vmap_method="sequential"),
    )
    return results
