"""Robots that are broken, for seeing which elites still walk."""

import copy
from collections.abc import Sequence

import mujoco
import numpy as np

from ppga.errors import InputError, choose
from ppga.physics import make_physics
from ppga.storage import NumpyArray
from ppga.tasks.base import Task

LOCKED = 1e5, 2e3
"""Damping (N m s/rad) and inertia (kg m^2) of a joint that is locked: it hardly turns,
however strong its motor, and no integrator finds it stiff.
"""


def damaged(task: Task, damages: Sequence[str]) -> Task:
    """The same task with a broken robot.

    Args:
        task: with the whole robot.
        damages: each one of lock:JOINT, weak:JOINT:FACTOR (what is left of its motor), mass:BODY:FACTOR and
            friction:FACTOR.

    Raises:
        InputError: no such damage, or no such joint or body.
    """
    if not damages:
        raise InputError("which damage? lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR or friction:FACTOR.")
    broken = copy.copy(task)
    broken.model = copy.copy(task.model)
    for damage in damages:
        _break(broken.model, damage)
    mujoco.mj_setConst(broken.model, mujoco.MjData(broken.model))
    broken.physics = make_physics(
        task.physics_name, broken.model, task.substeps, task.derived, task.changes, task.threads, task.impl
    )
    return broken


def _break(model: mujoco.MjModel, damage: str) -> None:
    kind, *words = damage.split(":")
    takes = {"lock": 1, "weak": 2, "mass": 2, "friction": 1}
    if len(words) != takes[choose("damage", kind, takes)]:
        raise InputError(
            f"{damage!r} is not a damage: lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR or friction:FACTOR."
        )
    factor = 0.0 if kind == "lock" else _factor(damage, words[-1])
    if kind == "friction":
        model.geom_friction[:, 0] *= factor
        model.pair_friction[:, :2] *= factor
        return
    if kind == "mass":
        names = [model.body(number).name for number in range(1, model.nbody)]
        body = 1 + names.index(choose("body", words[0], names))
        model.body_mass[body] *= factor
        model.body_inertia[body] *= factor
        return
    joint = _joint(model, words[0])
    if kind == "lock":
        turns = model.dof_jntid == joint
        model.dof_damping[turns], model.dof_armature[turns] = LOCKED
    motors = _motors(model, joint)  # by their force, so that servos still know where they are
    for values in (model.actuator_gainprm, model.actuator_biasprm, model.actuator_forcerange):
        values[motors] *= factor


def _factor(damage: str, word: str) -> float:
    try:
        factor = float(word)
    except ValueError:
        factor = np.nan
    if not 0 <= factor < np.inf or (damage.startswith("mass") and factor == 0):
        raise InputError(f"{damage!r}: {word!r} is not a factor.")
    return factor


def _motors(model: mujoco.MjModel, joint: int) -> NumpyArray:
    """Numbers of the actuators of a joint."""
    turns = model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    return np.flatnonzero(turns & (model.actuator_trnid[:, 0] == joint))


def _joint(model: mujoco.MjModel, name: str) -> int:
    names = [model.joint(number).name for number in range(model.njnt)]
    driven = [name for number, name in enumerate(names) if len(_motors(model, number))]
    return names.index(choose("joint with a motor", name, driven))
