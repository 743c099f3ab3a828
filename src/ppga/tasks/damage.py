"""Damaged robots, for finding out which elites still walk."""

import copy
from collections.abc import Sequence

import mujoco
import numpy as np

from ppga.errors import InputError, check_choice
from ppga.physics import make_physics
from ppga.tasks.base import Task
from ppga.types import NumpyArray

LOCKED = 1e5, 2e3
"""Damping (N m s/rad) and armature inertia (kg m^2) of a locked joint: it hardly moves under any load,
and is not too stiff for any integrator.
"""
_KINDS = {"lock": 1, "weak": 2, "mass": 2, "friction": 1}
"""Kind of damage -> number of its arguments."""


def damaged(task: Task, damages: Sequence[str]) -> Task:
    """The same task with a damaged robot.

    Args:
        task: the task with the intact robot.
        damages: any of lock:JOINT, weak:JOINT:FACTOR (the motor's remaining strength), mass:BODY:FACTOR and
            friction:FACTOR.

    Raises:
        InputError: no damage, or an unknown damage, joint or body.
    """
    if not damages:
        raise InputError(
            "no damage given: use lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR or friction:FACTOR."
        )
    copied = copy.copy(task)
    copied.model = copy.copy(task.model)
    for damage in damages:
        _apply(copied.model, damage)
    mujoco.mj_setConst(copied.model, mujoco.MjData(copied.model))
    copied.physics = make_physics(
        task.physics_name, copied.model, task.substeps, task.derived, task.changes, task.threads, task.impl
    )
    return copied


def _apply(model: mujoco.MjModel, damage: str) -> None:
    """Change a model; `damage` is as in `damaged`."""
    kind, *arguments = damage.split(":")
    if len(arguments) != _KINDS[check_choice("damage", kind, _KINDS)]:
        raise InputError(
            f"{damage!r} is not a damage: lock:JOINT, weak:JOINT:FACTOR, mass:BODY:FACTOR or friction:FACTOR."
        )
    factor = 0.0 if kind == "lock" else _factor(damage, arguments[-1])
    if kind == "friction":
        model.geom_friction[:, 0] *= factor
        model.pair_friction[:, :2] *= factor
        return
    if kind == "mass":
        names = [model.body(number).name for number in range(1, model.nbody)]
        body = 1 + names.index(check_choice("body", arguments[0], names))
        model.body_mass[body] *= factor
        model.body_inertia[body] *= factor
        return
    joint = _joint(model, arguments[0])
    if kind == "lock":
        dofs = model.dof_jntid == joint
        model.dof_damping[dofs], model.dof_armature[dofs] = LOCKED
    motors = _motors(model, joint)
    # all parts of the force are scaled alike, so a position servo keeps its target
    for values in (model.actuator_gainprm, model.actuator_biasprm, model.actuator_forcerange):
        values[motors] *= factor


def _factor(damage: str, text: str) -> float:
    """The factor of a damage; raises an InputError if the text is not a valid one."""
    try:
        factor = float(text)
    except ValueError:
        factor = np.nan
    if not 0 <= factor < np.inf or (damage.startswith("mass") and factor == 0):
        raise InputError(f"{damage!r}: {text!r} is not a factor.")
    return factor


def _motors(model: mujoco.MjModel, joint: int) -> NumpyArray:
    """Numbers of the actuators of a joint."""
    on_joints = model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    return np.flatnonzero(on_joints & (model.actuator_trnid[:, 0] == joint))


def _joint(model: mujoco.MjModel, name: str) -> int:
    """Number of a joint with a motor; raises an InputError if there is none of that name."""
    names = [model.joint(number).name for number in range(model.njnt)]
    motorized = [name for number, name in enumerate(names) if len(_motors(model, number))]
    return names.index(check_choice("joint with a motor", name, motorized))
