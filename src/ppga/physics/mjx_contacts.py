"""MuJoCo's friction directions for MJX.

The friction pyramid of a capsule on a plane is aligned with the capsule's axis: always in MuJoCo, but in MJX
(3.17, impl="jax") only if the capsule's slope is below 60 degrees. The ant's legs are steeper, and a pyramid
in another direction gives other forces: velocities then differ by half a meter per second after one step of
contact.
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
_TABLE_LOCK = threading.Lock()


@contextlib.contextmanager
def turned_along_capsules() -> Iterator[None]:
    """A context in which MJX is traced with MuJoCo's friction directions of plane-capsule contacts.

    Raises:
        InputError: the installed version of MJX has no such table of collision functions.
    """
    table: dict[Any, Any] = getattr(collision_driver, "_COLLISION_FUNC", {})
    key = next((types for types in table if tuple(map(int, types)) == _PLANE_CAPSULE), None)
    if key is None:
        raise InputError(
            f"mujoco-mjx {version_of('mujoco-mjx')} is not supported: ppga needs the internals of 3.17. Run "
            "pip install 'mujoco-mjx==3.17.*'"
        )

    def turned(model: Any, data: Any, pair_key: Any, geoms: Array) -> tuple[Array, Array, Array]:
        distance, position, frame = original(model, data, pair_key, geoms)
        axes = jnp.repeat(data.geom_xmat[geoms[:, 1]][..., 2], original.ncon, axis=0)
        return distance, position, jax.vmap(_turn)(frame, axes)

    with _TABLE_LOCK:  # the table is global
        original = table[key]
        turned.ncon = original.ncon  # type: ignore[attr-defined]
        table[key] = turned
        try:
            yield
        finally:
            table[key] = original


def _turn(frame: Array, axis: Array) -> Array:
    """A contact frame (3, 3) with its first tangent along an axis (3,), unless that is the normal."""
    normal = frame[0]
    along = axis - normal * (normal @ axis)
    length = jnp.linalg.norm(along)
    tangent = along / jnp.maximum(length, 1e-6)
    return jnp.where(length > 1e-6, jnp.stack([normal, tangent, jnp.cross(normal, tangent)]), frame)
