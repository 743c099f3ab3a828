"""Physics: advance n bodies by one control step. Two engines, one model, one interface."""

import mujoco

from ppga.errors import choose
from ppga.physics.base import Array, Bodies, Physics, select
from ppga.physics.models import INTEGRATORS, prepare_model
from ppga.physics.mujoco_engine import MujocoPhysics, visible_cores

ENGINES = ("mujoco", "mjx")

__all__ = [
    "ENGINES",
    "INTEGRATORS",
    "Array",
    "Bodies",
    "MujocoPhysics",
    "Physics",
    "make_physics",
    "prepare_model",
    "select",
    "visible_cores",
]


def make_physics(
    engine: str,
    model: mujoco.MjModel,
    substeps: int,
    derived: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
    threads: int | None = None,
    impl: str = "jax",
) -> Physics:
    """The engine of that name; `threads` matters to mujoco only, `impl` to mjx only."""
    if choose("physics", engine, ENGINES) == "mujoco":
        return MujocoPhysics(model, substeps, derived, changes, threads)
    from ppga.physics.mjx_engine import MjxPhysics  # an optional extra

    return MjxPhysics(model, substeps, derived, changes, impl)
