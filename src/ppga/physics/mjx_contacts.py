"""MuJoCo's friction directions for MJX.

A capsule's friction pyramid on a plane is turned along the capsule's axis: always so in MuJoCo, but in MJX
(3.17, impl="jax") only while the capsule lies flatter than 60 degrees. The ant stands on steeper legs than
that, and a pyramid turned otherwise gives other forces: one step of contact then differs by half a metre a
second.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
from mujoco.mjx._src import collision_driver

from ppga.errors import InputError
from ppga.machine import version_of

Array = jax.Array
_PLANE_CAPSULE = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_CAPSULE))
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def turned_along_capsules() -> Iterator[None]:
    """While MJX is traced in this context, its plane-capsule contacts are framed as MuJoCo's are."""
    table: dict[Any, Any] = getattr(collision_driver, "_COLLISION_FUNC", {})
    key = next((types for types in table if tuple(map(int, types)) == _PLANE_CAPSULE), None)
    if key is None:
        raise InputError(
            f"mujoco-mjx {version_of('mujoco-mjx')} is put together otherwise than the versions ppga knows; "
            "pip install 'mujoco-mjx==3.17.*'"
        )

    def turned(model: Any, data: Any, pair_key: Any, geoms: Array) -> tuple[Array, Array, Array]:
        distance, position, frame = original(model, data, pair_key, geoms)
        axes = jnp.repeat(data.geom_xmat[geoms[:, 1]][..., 2], original.ncon, axis=0)
        return distance, position, jax.vmap(_turn)(frame, axes)

    with _ONE_AT_A_TIME:  # the table belongs to the process
        original = table[key]
        turned.ncon = original.ncon  # type: ignore[attr-defined]
        table[key] = turned
        try:
            yield
        finally:
            table[key] = original


def _turn(frame: Array, axis: Array) -> Array:
    """The frame (3, 3) with its first tangent along `axis` (3,), if that is not upright on the plane."""
    normal = frame[0]
    along = axis - normal * (normal @ axis)
    length = jnp.linalg.norm(along)
    tangent = along / jnp.maximum(length, 1e-6)
    return jnp.where(length > 1e-6, jnp.stack([normal, tangent, jnp.cross(normal, tangent)]), frame)
