"""Physics: engines that advance n simulated bodies by one control step, behind one interface."""

import mujoco
from mujoco.batch import DATA_FIELDS

from ppga.errors import InputError, check_choice
from ppga.physics.base import Array, Bodies, Physics, select
from ppga.physics.models import INTEGRATORS, prepare_model
from ppga.physics.mujoco_engine import MujocoPhysics

ENGINES = ("mujoco", "mjx")
# MuJoCo computes these only if a sensor needs them; otherwise they hold old values after a step
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
    """Create an engine.

    Args:
        engine: "mujoco" (threads on CPUs) or "mjx" (JAX, for accelerators).
        model: the compiled model.
        substeps: MuJoCo steps in one control step.
        derived: names of further MjData fields to return in `Bodies.derived`.
        changes: names of MjData fields whose change over a control step is returned in `Bodies.change`.
        threads: threads of the mujoco engine; all visible cores by default.
        impl: implementation of the mjx engine, "jax" or "warp".

    Raises:
        InputError: an unknown engine or field, or a field that a step does not compute.
    """
    for field in (*derived, *changes):
        if check_choice("MjData field", field, sorted(DATA_FIELDS)) in ON_DEMAND:
            raise InputError(
                f"a step does not compute the MjData field {field!r}; add a sensor for it to the model and "
                "read sensordata."
            )
    if check_choice("physics", engine, ENGINES) == "mujoco":
        return MujocoPhysics(model, substeps, derived, changes, threads)
    from ppga.physics.mjx_engine import MjxPhysics  # needs an optional extra

    return MjxPhysics(model, substeps, derived, changes, impl)
