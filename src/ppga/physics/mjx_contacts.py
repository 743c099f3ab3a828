"""MuJoCo's friction directions for MJX.

A capsule's friction pyramid on a plane is turned along the capsule's axis: always so in MuJoCo, but in MJX
(3.17, impl="jax") only while the capsule lies flatter than 60 degrees. The ant stands on steeper legs than
that, and a pyramid turned otherwise gives other forces: one step of contact then differs by half a metre a
second.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
from mujoco.mjx._src import collision_driver

Array = jax.Array
_PLANE_CAPSULE = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_CAPSULE)


@contextlib.contextmanager
def turned_along_capsules() -> Iterator[None]:
    """While MJX is traced in this context, its plane-capsule contacts are framed as MuJoCo's are."""
    table: dict[Any, Any] = collision_driver._COLLISION_FUNC
    key = next(types for types in table if tuple(map(int, types)) == tuple(map(int, _PLANE_CAPSULE)))
    original = table[key]

    def turned(model: Any, data: Any, pair_key: Any, geoms: Array) -> tuple[Array, Array, Array]:
        distance, position, frame = original(model, data, pair_key, geoms)
        axes = jnp.repeat(data.geom_xmat[geoms[:, 1]][..., 2], original.ncon, axis=0)
        return distance, position, jax.vmap(_turn)(frame, axes)

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
