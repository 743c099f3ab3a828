"""The mujoco engine compared with MuJoCo itself, bit by bit, for any number of threads and batch size."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ppga.physics import Array, Bodies, MujocoPhysics
from ppga.tasks import Task

from helpers.tasks import shared_task

STEPS = 40


def engine(task: Task, threads: int) -> MujocoPhysics:
    return MujocoPhysics(task.model, task.substeps, task.derived, task.changes, threads)


def starts(task: Task, n: int, seed: int) -> tuple[Array, Array]:
    qpos, qvel = jax.vmap(task.initial)(jax.random.split(jax.random.key(seed), n))
    return qpos, qvel


def controls(task: Task, n: int, seed: int, steps: int = STEPS) -> Array:
    return task.controls(jax.random.uniform(jax.random.key(seed), (steps, n, task.action_size), minval=-1.0))


def run(physics: MujocoPhysics, qpos: Array, qvel: Array, ctrl: Array, active: Array | None = None) -> Bodies:
    """All control steps in one jitted scan."""
    all_bodies = jnp.ones(len(qpos), bool)

    def scan(qpos: Array, qvel: Array, ctrl: Array, active: Array) -> Bodies:
        start = physics.reset(qpos, qvel, all_bodies)
        bodies: Bodies = jax.lax.scan(lambda b, u: (physics.step(b, u, active), None), start, ctrl)[0]
        return bodies

    bodies: Bodies = jax.jit(scan)(qpos, qvel, ctrl, all_bodies if active is None else active)
    return bodies


def plain_loop(task: Task, qpos: Any, qvel: Any, ctrl: Any) -> mujoco.MjData:
    """One simulation stepped by hand."""
    data = mujoco.MjData(task.model)
    data.qpos, data.qvel = np.asarray(qpos), np.asarray(qvel)
    mujoco.mj_forward(task.model, data)
    for now in np.asarray(ctrl):
        data.ctrl = now
        for _ in range(task.substeps):
            mujoco.mj_step(task.model, data)
    return data


@pytest.mark.parametrize("integrator", ["fast", "gymnasium"])
def test_identical_to_a_plain_loop_at_any_thread_count(name: str, integrator: str) -> None:
    task = shared_task(name, integrator=integrator)
    n = 3
    (qpos, qvel), ctrl = starts(task, n, seed=1), controls(task, n, seed=2)
    by_hand = [plain_loop(task, qpos[i], qvel[i], ctrl[:, i]) for i in range(n)]
    for threads in (1, 2):
        physics = engine(task, threads)
        bodies = run(physics, qpos, qvel, ctrl)
        np.testing.assert_array_equal(
            physics.unpack(bodies.state["rows"]), physics.unpack(physics.pack(by_hand))
        )
        for field in ("sensordata", *task.derived):
            expected = np.stack([getattr(data, field) for data in by_hand]).astype(np.float32)
            handed_out = bodies.sensordata if field == "sensordata" else bodies.derived[field]
            np.testing.assert_array_equal(handed_out, expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_body_does_not_depend_on_the_others(seed: int) -> None:
    task = shared_task("ant")
    physics = engine(task, 2)
    (qpos, qvel), ctrl = starts(task, 64, seed), controls(task, 64, seed + 10)
    batch = physics.unpack(run(physics, qpos, qvel, ctrl).state["rows"])
    for i in (0, 17, 63):
        single = run(physics, qpos[i : i + 1], qvel[i : i + 1], ctrl[:, i : i + 1])
        np.testing.assert_array_equal(physics.unpack(single.state["rows"])[0], batch[i])


def test_inactive_bodies_stay_and_active_ones_move_as_if_alone() -> None:
    task = shared_task("walker2d")
    physics = engine(task, 2)
    (qpos, qvel), ctrl = starts(task, 8, 0), controls(task, 8, 1)
    active = jnp.array([True, False] * 4)
    start = jax.jit(physics.reset)(qpos, qvel, jnp.ones(8, bool))
    partly_active, all_active = run(physics, qpos, qvel, ctrl, active), run(physics, qpos, qvel, ctrl)
    np.testing.assert_array_equal(partly_active.state["rows"][1::2], start.state["rows"][1::2])
    np.testing.assert_array_equal(partly_active.qpos[1::2], start.qpos[1::2])
    np.testing.assert_array_equal(partly_active.change["qpos"][1::2], 0)
    np.testing.assert_array_equal(partly_active.state["rows"][0::2], all_active.state["rows"][0::2])


def test_changes_are_computed_before_rounding() -> None:
    """At 1 km, float32 positions are 0.06 mm apart, which is 1 cm/s in a step of 8 ms."""
    task = shared_task("walker2d")
    physics = engine(task, 1)
    data = mujoco.MjData(task.model)
    data.qpos[0] = 1000.0
    data.qvel[0] = 1.2345678
    mujoco.mj_forward(task.model, data)
    before = data.qpos[0]
    start = jax.jit(physics.reset)(*starts(task, 1, 0), jnp.ones(1, bool))
    far = replace(start, state={**start.state, "rows": physics.pack([data])})
    after = jax.jit(physics.step)(far, jnp.zeros((1, task.action_size)), jnp.ones(1, bool))
    for _ in range(task.substeps):
        mujoco.mj_step(task.model, data)
    np.testing.assert_allclose(after.change["qpos"][0, 0], data.qpos[0] - before, rtol=1e-6)
    assert abs((np.float32(data.qpos[0]) - np.float32(before)) - (data.qpos[0] - before)) > 1e-6


@pytest.mark.parametrize("poison", ["nan control", "huge velocity", "nan position"])
def test_a_diverging_body_is_flagged_and_keeps_its_state(
    poison: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where MuJoCo would write its log
    task = shared_task("halfcheetah")
    physics = engine(task, 2)
    n, sick = 6, 2
    (qpos, qvel), ctrl = starts(task, n, 0), controls(task, n, 1, steps=3)
    healthy = run(physics, qpos, qvel, ctrl)
    step = jax.jit(physics.step)
    bodies = jax.jit(physics.reset)(qpos, qvel, jnp.ones(n, bool))
    if poison != "nan control":
        row = physics.unpack(bodies.state["rows"])
        column, value = {"huge velocity": (1 + task.model.nq, 1e11), "nan position": (3, np.nan)}[poison]
        row[sick, column] = value
        bodies = replace(bodies, state={**bodies.state, "rows": jnp.asarray(row.view(np.uint32))})
    else:
        ctrl = ctrl.at[0, sick, 3].set(jnp.nan)
    before = bodies
    active = jnp.ones(n, bool)
    for now in ctrl:
        bodies = step(bodies, now, active)
        active = active & ~bodies.diverged
    assert active.tolist() == [i != sick for i in range(n)]
    np.testing.assert_array_equal(bodies.state["rows"][sick], before.state["rows"][sick])
    others = np.arange(n) != sick
    np.testing.assert_array_equal(bodies.state["rows"][others], healthy.state["rows"][others])
    for field in (bodies.qpos, bodies.qvel, bodies.sensordata, bodies.change["qpos"]):
        assert np.isfinite(field).all()
    assert list(tmp_path.iterdir()) == []
    assert "WARNING" not in capfd.readouterr().err


def test_the_flag_of_divergence_is_that_of_the_last_step() -> None:
    """MuJoCo's warning counters accumulate; the engine must read those of one step."""
    task = shared_task("halfcheetah")
    physics = engine(task, 1)
    step = jax.jit(physics.step)
    all_bodies = jnp.ones(2, bool)
    bodies = jax.jit(physics.reset)(*starts(task, 2, 0), all_bodies)
    ctrl = jnp.zeros((2, task.action_size))
    assert step(bodies, ctrl.at[0].set(jnp.nan), all_bodies).diverged.tolist() == [True, False]
    assert step(bodies, ctrl, all_bodies).diverged.tolist() == [False, False]


def test_other_devices_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices, arrays are copied to the host and back; here this is forced on a CPU."""
    task = shared_task("walker2d")
    (qpos, qvel), ctrl = starts(task, 4, 0), controls(task, 4, 1, steps=5)
    in_place = run(engine(task, 1), qpos, qvel, ctrl)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *inputs, default, **_: default(*inputs))
    copied = run(engine(task, 1), qpos, qvel, ctrl)
    jax.tree.map(np.testing.assert_array_equal, copied, in_place)


def test_concurrent_engines_restore_mujocos_warning_handler() -> None:
    task = shared_task("hopper")
    before = mujoco.get_mju_user_warning()

    def work(seed: int) -> None:
        run(engine(task, 1), *starts(task, 2, seed), controls(task, 2, seed, steps=300))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mujoco.get_mju_user_warning() is before


def test_an_error_of_mujoco_concerns_one_body_only() -> None:
    """With too little memory for many contacts, MuJoCo raises; the error must not leave jitted code."""
    spec = mujoco.MjSpec.from_string(
        """<mujoco><option timestep="0.002"/><size memory="16K"/><worldbody>
        <geom name="floor" type="plane" size="5 5 1"/>"""
        + "".join(
            f'<body pos="{i} 0 1"><freejoint/><geom type="box" size=".3 .3 .3"/></body>' for i in range(12)
        )
        + "</worldbody></mujoco>"
    )
    model = spec.compile()
    physics = MujocoPhysics(model, 1)
    qpos = np.tile(model.qpos0, (2, 1)).astype(np.float32)
    qpos[1, 2::7] = 0.25  # all boxes in the floor
    all_bodies = jnp.ones(2, bool)
    bodies = jax.jit(physics.reset)(jnp.asarray(qpos), jnp.zeros((2, model.nv)), all_bodies)
    after = jax.jit(physics.step)(bodies, jnp.zeros((2, 0)), all_bodies)
    assert (bodies.diverged | after.diverged).tolist() == [False, True]
