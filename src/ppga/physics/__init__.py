"""Physics: advance n bodies by one control step. Two engines, one model, one interface."""

import mujoco
from mujoco.batch import DATA_FIELDS

from ppga.errors import InputError, choose
from ppga.physics.base import Array, Bodies, Physics, select
from ppga.physics.models import INTEGRATORS, prepare_model
from ppga.physics.mujoco_engine import MujocoPhysics

ENGINES = ("mujoco", "mjx")
# MuJoCo computes these for sensors that ask for them only; after a plain step they hold old values
ON_DEMAND = ("cacc", "cfrc_ext", "cfrc_int", "energy", "qfrc_inverse", "subtree_angmom", "subtree_linvel")

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
    for field in (*derived, *changes):
        if choose("MjData field", field, sorted(DATA_FIELDS)) in ON_DEMAND:
            raise InputError(
                f"a step does not compute the MjData field {field!r}; add a sensor to the model."
            )
    if choose("physics", engine, ENGINES) == "mujoco":
        return MujocoPhysics(model, substeps, derived, changes, threads)
    from ppga.physics.mjx_engine import MjxPhysics  # an optional extra

    return MjxPhysics(model, substeps, derived, changes, impl)
