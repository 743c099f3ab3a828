"""Calling host code that works in place on arrays, from inside jitted JAX code."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

Array = jax.Array
HostArray = np.ndarray[Any, np.dtype[Any]]
HostFunction = Callable[..., None]
"""(list of output arrays to fill, *input arrays) -> None; inputs must not be written to."""


def call_host(
    function: HostFunction, outputs: list[tuple[tuple[int, ...], Any]], *inputs: Array
) -> list[Array]:
    """What `function` writes into outputs of the given shapes and dtypes.

    The function must be pure: XLA may call it again, leave it out, or run two calls at once. On CPUs it sees
    XLA's own buffers and a call costs tens of microseconds; elsewhere arrays travel to the host and back.
    """
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs]  # type: ignore[no-untyped-call]

    def in_place(context: Any, out: Any, *buffers: Any) -> None:  # noqa: ARG001
        function([np.asarray(one) for one in out], *(np.asarray(one) for one in buffers))

    def by_copies(*copies: Any) -> list[HostArray]:
        out = [np.empty(shape, dtype) for shape, dtype in outputs]
        function(out, *(np.asarray(one) for one in copies))
        return out

    results: list[Array] = jax.lax.platform_dependent(
        *inputs,
        cpu=lambda *args: buffer_callback(in_place, shapes, vmap_method="sequential")(*args),
        default=lambda *args: jax.pure_callback(by_copies, shapes, *args, vmap_method="sequential"),
    )
    return results
