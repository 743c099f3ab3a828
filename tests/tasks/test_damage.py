"""Damaged robots."""

from collections.abc import Iterator

import jax
import mujoco
import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.physics import Array
from ppga.rollouts import Recording, evaluate, record
from ppga.tasks import find, robot

from helpers.tasks import QUADRUPED, registry_restored, shared_task


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry_restored():
        yield


def test_damages_change_the_model_as_described() -> None:
    intact = shared_task("walker2d", episode_length=60)
    with pytest.raises(InputError, match="no damage given"):
        ppga.damaged(intact, [])
    for damage, message in (
        ("bend:foot_joint", "unknown damage"), ("lock:nose", "unknown joint with a motor 'nose'"),
        ("lock:rootx", "unknown joint with a motor"), ("weak:foot_joint", "is not a damage"),
        ("mass:torso:0", "is not a factor"), ("mass:hat:2", "unknown body"), ("friction:-1", "not a factor"),
        ("weak:foot_joint:much", "not a factor"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            ppga.damaged(intact, [damage])

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.random.uniform(key, (len(observation), 6), minval=-1.0)

    damaged = ppga.damaged(intact, ["lock:foot_joint", "weak:leg_joint:0.5", "mass:torso:2", "friction:0.3"])
    assert damaged.model.body("torso").mass[0] == 2 * intact.model.body("torso").mass[0]
    assert damaged.model.geom("floor").friction[0] == 0.3 * intact.model.geom("floor").friction[0]
    before, after = intact.model.actuator_gainprm[:, 0], damaged.model.actuator_gainprm[:, 0]
    assert sorted((after / before).tolist()) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    angle = intact.model.joint("foot_joint").qposadr[0]
    ranges = []
    for task in (intact, damaged):
        recording: Recording = jax.jit(lambda key, task=task: record(task, act, key, 4, 20))(
            jax.random.key(0)
        )
        ranges.append(float(np.ptp(np.asarray(recording.qpos)[:, :, angle])))
    assert ranges[0] > 0.2
    assert ranges[1] < 0.02, "a locked joint keeps its initial angle"


def test_a_locked_joint_is_not_too_stiff_for_any_integrator() -> None:
    for integrator in ("fast", "gymnasium"):
        damaged = ppga.damaged(robot("hopper", integrator=integrator, episode_length=30), ["lock:leg_joint"])

        def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
            return jax.random.uniform(key, (len(observation), 3), minval=-1.0)

        scores = jax.jit(lambda key, task=damaged, act=act: evaluate(task, act, key, 4))(jax.random.key(0))
        assert not scores.diverged.any()


def test_a_weak_servo_keeps_its_target() -> None:
    """With half the strength, it has half the force toward the same position."""
    intact = robot(find(QUADRUPED), episode_length=30)
    damaged = ppga.damaged(intact, ["weak:fl knee:0.5"])
    forces = []
    for task in (intact, damaged):
        data = mujoco.MjData(task.model)
        motor = mujoco.mj_name2id(task.model, mujoco.mjtObj.mjOBJ_JOINT, "fl knee")
        number = int(np.flatnonzero(task.model.actuator_trnid[:, 0] == motor)[0])
        data.ctrl[number] = 0.1
        mujoco.mj_forward(task.model, data)
        forces.append(data.actuator_force[number])
        data.qpos[task.model.jnt_qposadr[motor]] = 0.1
        mujoco.mj_forward(task.model, data)
        np.testing.assert_allclose(data.actuator_force[number], 0, atol=1e-9)
    assert forces[0] > 0.1
    np.testing.assert_allclose(forces[1], forces[0] / 2)
