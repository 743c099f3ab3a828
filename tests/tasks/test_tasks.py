"""Tasks compared with those of Gymnasium, and with MuJoCo's own list of contacts."""

from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import scipy.stats

from ppga.physics import MujocoPhysics
from ppga.tasks import Task, TaskState, make_task
from ppga.tasks.locomotion import Ant

from helpers.tasks import shared_task

GYMNASIUM_IDS = {
    "halfcheetah": "HalfCheetah-v5",
    "walker2d": "Walker2d-v5",
    "hopper": "Hopper-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
    "humanoid-full": "Humanoid-v5",
}
WITHOUT_FORCES: dict[str, Any] = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
POSITIONS_AND_VELOCITIES: dict[str, Any] = WITHOUT_FORCES | {
    f"include_{name}_in_observation": False for name in ("cinert", "cvel", "qfrc_actuator")
}
OPTIONS = {
    "ant": WITHOUT_FORCES,
    "humanoid": POSITIONS_AND_VELOCITIES,
    "humanoid-full": WITHOUT_FORCES,
}


def gymnasium_env(name: str) -> Any:
    return gymnasium.make(GYMNASIUM_IDS[name], **OPTIONS.get(name, {})).unwrapped


def physics_of(task: Task) -> MujocoPhysics:
    assert isinstance(task.physics, MujocoPhysics)
    return task.physics


def with_body(task: Task, state: TaskState, data: mujoco.MjData) -> TaskState:
    """A state of one environment whose body has exactly the state of `data`."""
    exact = {**state.bodies.state, "rows": physics_of(task).pack([data])}
    return replace(state, bodies=replace(state.bodies, state=exact))


@pytest.mark.parametrize("name", GYMNASIUM_IDS)
@pytest.mark.filterwarnings("ignore")  # Gymnasium warns of its own observation bounds
def test_200_steps_equal_those_of_gymnasium(name: str) -> None:
    task = shared_task(name, integrator="gymnasium")
    env = gymnasium_env(name)
    fresh = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(0))
    step = jax.jit(task.step)
    actions = jax.random.uniform(jax.random.key(1), (200, 1, task.action_size), minval=-1.0)
    controls = np.asarray(task.controls(actions), np.float64)
    env.reset(seed=0)
    state = with_body(task, fresh, env.data)
    ends = 0
    for t in range(200):
        state = step(state, actions[t])
        observation, reward, terminated, _, _ = env.step(controls[t, 0])
        np.testing.assert_allclose(state.observation[0], observation, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(state.reward[0], reward, rtol=1e-6, atol=1e-6)
        assert bool(state.terminated[0]) == bool(terminated)
        if terminated:
            ends += 1
            env.reset(seed=t + 1)
            state = with_body(task, fresh, env.data)
    assert (ends > 0) == (name not in ("halfcheetah", "ant"))


@pytest.mark.filterwarnings("ignore")
def test_initial_states_are_distributed_as_in_gymnasium(name: str) -> None:
    task = shared_task(name, integrator="gymnasium")
    env = gymnasium_env(name)
    theirs = []
    for seed in range(60):
        env.reset(seed=seed)
        theirs.append(np.concatenate([env.data.qpos - env.init_qpos, env.data.qvel - env.init_qvel]))
    keys = jax.random.split(jax.random.key(0), 400)
    qpos, qvel = jax.vmap(task.initial)(keys)
    ours = np.concatenate([qpos - task.model.qpos0, qvel], axis=1)
    nq = task.model.nq
    for part in (slice(0, nq), slice(nq, None)):
        assert scipy.stats.ks_2samp(ours[:, part].ravel(), np.stack(theirs)[:, part].ravel()).pvalue > 1e-3


@pytest.mark.filterwarnings("ignore")
def test_the_first_observation_equals_that_of_gymnasium(name: str) -> None:
    task = shared_task(name, integrator="gymnasium")
    env = gymnasium_env(name)
    observation, _ = env.reset(seed=7)
    qpos, qvel = (jnp.asarray(values[None], jnp.float32) for values in (env.data.qpos, env.data.qvel))
    bodies = jax.jit(task.physics.reset)(qpos, qvel, jnp.ones(1, bool))
    np.testing.assert_allclose(jax.vmap(task.observe)(bodies)[0], observation, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_ant_is_healthy_at_the_same_heights_as_in_gymnasium() -> None:
    """Random actions do not end its episodes, so single heights are tested."""
    task, env = Ant(integrator="gymnasium"), gymnasium_env("ant")
    env.reset(seed=0)
    bodies = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(0)).bodies
    body = jax.tree.map(lambda leaf: leaf[0], bodies)
    for height in (0.1, 0.19, 0.21, 0.5, 0.99, 1.01):
        env.set_state(env.data.qpos * [1, 1, 0, *[1] * 12] + [0, 0, height, *[0] * 12], env.data.qvel)
        ended = task.terminated(replace(body, qpos=jnp.asarray(env.data.qpos, jnp.float32)))
        assert bool(ended) == (not env.is_healthy) == (not 0.2 <= height <= 1.0)


def contacts_before_last_substep(task: Task, data: mujoco.MjData, ctrl: Any) -> list[float]:
    """Advance `data` by a control step; which feet have contact one substep before its end, 0 or 1 each."""
    data.ctrl = ctrl
    for _ in range(task.substeps - 1):
        mujoco.mj_step(task.model, data)
    copied = mujoco.MjData(task.model)
    copied.qpos, copied.qvel = data.qpos, data.qvel
    mujoco.mj_forward(task.model, copied)
    pairs = [{task.model.geom(geom).name for geom in contact.geom} for contact in copied.contact]
    mujoco.mj_step(task.model, data)
    return [
        float(any({task.floor, geom} == pair for geom in geoms for pair in pairs))
        for geoms in task.feet.values()
    ]


def test_contact_proxies_equal_mujocos_contact_list(name: str) -> None:
    task = shared_task(name)
    state = jax.jit(lambda key: task.reset(key, 1))(jax.random.key(3))
    step = jax.jit(task.step)
    data = mujoco.MjData(task.model)
    data.qpos, data.qvel = np.asarray(state.bodies.qpos[0]), np.asarray(state.bodies.qvel[0])
    mujoco.mj_forward(task.model, data)
    contacts = []
    for action in jax.random.uniform(jax.random.key(4), (200, 1, task.action_size), minval=-1.0):
        state = replace(step(state, action), terminated=jnp.zeros(1, bool))  # continue after a fall
        expected = contacts_before_last_substep(task, data, np.asarray(task.controls(action)[0]))
        assert state.proxies[0].tolist() == expected
        contacts.append(expected)
    shares = np.mean(contacts, axis=0)
    assert ((shares > 0) & (shares < 1)).all(), "for this test, every foot must touch the floor and leave it"


@pytest.mark.parametrize(("gap", "flag"), [(0.019, 1.0), (0.021, 0.0)])
def test_contacts_include_the_margin(gap: float, flag: float) -> None:
    """The ant's foot and the floor have margins of 1 cm each: 19 mm apart is a contact, 21 mm is not."""
    task = shared_task("ant")
    data = mujoco.MjData(task.model)
    mujoco.mj_forward(task.model, data)
    foot = task.model.geom("left_ankle_geom")
    radius, half = foot.size[:2]
    lowest = data.geom("left_ankle_geom").xpos[2] - radius - half * abs(data.geom("left_ankle_geom").xmat[8])
    qpos = data.qpos.copy()
    qpos[2] += gap - lowest
    bodies = jax.jit(task.physics.reset)(
        jnp.asarray(qpos[None], jnp.float32), jnp.zeros((1, task.model.nv)), jnp.ones(1, bool)
    )
    assert jax.vmap(task.proxies)(bodies)[0, 0] == flag


def test_the_time_limit_truncates_and_the_last_observation_stays() -> None:
    task = shared_task("halfcheetah", episode_length=3)
    step, restart = jax.jit(task.step), jax.jit(task.restart)
    state = jax.jit(lambda key: task.reset(key, 4))(jax.random.key(0))
    action = jnp.full((4, task.action_size), 0.5)
    for t in range(1, 4):
        state = step(state, action)
        assert state.steps.tolist() == [t] * 4
        assert state.truncated.tolist() == [t == 3] * 4
    assert not state.terminated.any()
    idle = step(state, action)
    np.testing.assert_array_equal(idle.observation, state.observation)
    np.testing.assert_array_equal(idle.reward, 0)
    assert idle.steps.tolist() == [3] * 4
    fresh = restart(state, jax.random.key(9))
    assert fresh.steps.tolist() == [0] * 4
    assert not fresh.finished.any()
    assert not np.allclose(fresh.observation, state.observation)
    np.testing.assert_array_equal(restart(fresh, jax.random.key(10)).observation, fresh.observation)


def test_only_finished_environments_restart() -> None:
    task = shared_task("hopper")
    state = jax.jit(lambda key: task.reset(key, 4))(jax.random.key(0))
    state = replace(state, terminated=jnp.array([False, True, False, True]))
    fresh = jax.jit(task.restart)(state, jax.random.key(1))
    before, after = (np.asarray(each.bodies.state["rows"]) for each in (state, fresh))
    same = (before == after).all(axis=1)
    assert same.tolist() == [True, False, True, False]
    assert not fresh.finished.any()


def test_diverging_physics_terminates_one_episode_only() -> None:
    task = shared_task("ant")
    step = jax.jit(task.step)
    state = jax.jit(lambda key: task.reset(key, 3))(jax.random.key(0))
    state = step(state, jnp.zeros((3, task.action_size)))
    after = step(state, jnp.zeros((3, task.action_size)).at[1, 0].set(jnp.nan))
    assert after.terminated.tolist() == after.diverged.tolist() == [False, True, False]
    assert after.steps.tolist() == [2, 1, 2]
    assert after.reward[1] == 0
    np.testing.assert_array_equal(after.observation[1], state.observation[1])
    later = step(after, jnp.zeros((3, task.action_size)))
    assert later.diverged.tolist() == [False, True, False]
    assert later.steps.tolist() == [3, 1, 3]


def test_actions_are_clipped_and_scaled_to_the_actuators_range() -> None:
    task = shared_task("humanoid")
    actions = jnp.linspace(-2, 2, task.action_size)[None]
    expected = np.clip(np.linspace(-2, 2, task.action_size), -1, 1) * 0.4
    np.testing.assert_allclose(task.controls(actions)[0], expected, rtol=1e-6)


def test_sizes_archive_shapes_and_offsets() -> None:
    properties = {
        name: (
            task.observation_size,
            task.action_size,
            len(task.measure_names),
            task.archive_shape,
            task.qd_offset,
        )
        for name, task in ((name, shared_task(name)) for name in GYMNASIUM_IDS)
    }
    assert properties == {
        "halfcheetah": (17, 6, 2, (10, 10), -600.0),
        "walker2d": (17, 6, 2, (10, 10), 0.0),
        "hopper": (11, 3, 1, (10,), 0.0),
        "ant": (27, 8, 4, (10, 10, 10, 10), -3000.0),
        "humanoid": (45, 17, 2, (10, 10), 0.0),
        "humanoid-full": (270, 17, 2, (10, 10), 0.0),
    }
    assert shared_task("ant").measure_ranges == ((0.0, 1.0),) * 4


@pytest.mark.parametrize("name", ["halfcheetah", "ant"])
def test_the_offset_is_the_return_of_standing_still_at_full_torque(name: str) -> None:
    task = shared_task(name)
    bodies = jax.jit(task.physics.reset)(
        jnp.asarray(task.model.qpos0[None], jnp.float32), jnp.zeros((1, task.model.nv)), jnp.ones(1, bool)
    )
    full = task.controls(jnp.ones((1, task.action_size)))
    worst = jax.vmap(task.reward)(bodies, full)[0]
    np.testing.assert_allclose(task.episode_length * worst, task.qd_offset, rtol=1e-6)


def test_a_limit_clips_observations_and_rewards_and_changes_nothing_else() -> None:
    free, limited = shared_task("halfcheetah"), make_task("halfcheetah", clip=0.4)
    assert limited.clip == 0.4
    key, act = jax.random.key(0), jax.random.normal(jax.random.key(1), (30, 4, 6))
    states = [jax.jit(lambda key, task=task: task.reset(key, 4))(key) for task in (free, limited)]
    steps = [jax.jit(task.step) for task in (free, limited)]
    for action in [None, *act]:
        if action is not None:
            states = [step(state, action) for step, state in zip(steps, states, strict=True)]
        for name in ("observation", "reward"):
            values, clipped = (np.asarray(getattr(state, name)) for state in states)
            np.testing.assert_array_equal(clipped, np.clip(values, np.float32(-0.4), np.float32(0.4)))
        np.testing.assert_array_equal(states[0].proxies, states[1].proxies)
    assert (np.abs(states[0].observation) > 0.4).any()
    assert (np.abs(states[0].reward) > 0.4).any()
