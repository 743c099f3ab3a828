"""Environments of Brax and MuJoCo Playground as tasks, compared with their own loops."""

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.physics import Array
from ppga.rollouts import evaluate
from ppga.tasks import Environment, brax_feet


def brax() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Brax warns that it is no longer maintained
        return pytest.importorskip("brax.envs")


def pendulum() -> Environment:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = brax().get_environment("inverted_pendulum", backend="spring")

        def middle(state: Any) -> Array:
            return jnp.abs(state.obs[:1]) < 0.1

        return ppga.from_brax(env, middle, name="pendulum", measure_names=["middle"], episode_length=12)


def push(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """The same action for all environments, a function of time."""
    return jnp.sin(0.7 * steps)[:, None] * jnp.ones((1, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MJX, for Brax
def test_brax_episodes_equal_its_own_loop() -> None:
    task = pendulum()
    assert (task.observation_size, task.action_size, task.physics_name) == (4, 1, "brax")
    scores = jax.jit(lambda key: evaluate(task, push, key, 3))(jax.random.key(0))
    env: Any = task.env  # type: ignore[attr-defined]
    step = jax.jit(env.step)
    starts = jax.jit(lambda key: task.reset(jax.random.split(key)[0], 3))(jax.random.key(0))
    for number in range(3):
        state = jax.tree.map(lambda leaf, number=number: leaf[number], starts.bodies)
        total, flags, steps = 0.0, [], 0
        while steps < 12:
            state = step(state, jnp.sin(0.7 * jnp.array([steps])))
            steps += 1
            total += float(state.reward)
            flags.append(abs(float(state.obs[0])) < 0.1)
            if state.done:
                break
        assert int(scores.steps[number]) == steps
        np.testing.assert_allclose(scores.objective[number], total, rtol=1e-5)
        np.testing.assert_allclose(scores.measures[number], [np.mean(flags)], atol=1e-6)


def test_a_run_with_brax_is_resumed_exactly(tmp_path: Any) -> None:
    """With Brax' environment for tests, which hardly moves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = brax().get_environment("fast", use_dict_obs=False)
    task = ppga.from_brax(
        env,
        lambda state: state.reward[None] * 0 + 0.5,
        name="fast",
        measure_names=["nothing"],
        episode_length=6,
    )
    config, _ = ppga.preset("smoke", task)
    uninterrupted = ppga.train(
        task, config, budget=ppga.Budget(iterations=2), output=tmp_path / "uninterrupted"
    )
    ppga.train(task, config, budget=ppga.Budget(iterations=1), output=tmp_path / "parts")
    resumed = ppga.resume(tmp_path / "parts", budget=ppga.Budget(iterations=2), task=task)
    assert len(uninterrupted.archive) == 1
    for name, values in uninterrupted.archive.elites.items():
        np.testing.assert_array_equal(resumed.archive.elites[name], values)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "links"), [("walker2d", ["foot", "foot_left"]), ("ant", [2, 4, 6, 8])]
)  # fmt: skip
def test_contacts_of_feet_in_brax_equal_those_of_mujoco(name: str, links: list[str | int]) -> None:
    """The same model in the same pose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = brax().get_environment(name, backend="spring")
        measure = brax_feet(env, links)
        draws = np.random.default_rng(0)
        poses = np.asarray(env.sys.init_q) + draws.uniform(-0.4, 0.4, (80, env.sys.q_size()))
        if name == "ant":
            poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)

        def touches(pose: Array) -> Array:
            state = env.pipeline_init(pose, jnp.zeros(env.sys.qd_size()))
            return measure(SimpleNamespace(pipeline_state=state))

        touching = jax.jit(jax.vmap(touches))(jnp.asarray(poses))
    model = env.sys.mj_model
    data = mujoco.MjData(model)
    numbers = [env.sys.link_names.index(link) if isinstance(link, str) else link for link in links]
    feet = [set(np.flatnonzero(model.geom_bodyid == 1 + number).tolist()) for number in numbers]
    expected = []
    for pose in poses:
        data.qpos = pose
        mujoco.mj_forward(model, data)
        touched = {int(geom) for contact in data.contact if contact.dist <= 0 for geom in contact.geom}
        expected.append([bool(touched & geoms) for geoms in feet])
    agreement = np.mean(np.asarray(touching) == np.array(expected), axis=0)
    assert (agreement > 0.96).all()
    shares = np.mean(expected, axis=0)
    assert ((shares > 0) & (shares < 1)).all()


def test_links_without_a_unique_name_are_given_by_number() -> None:
    """As in Brax' ant, which has four links without a name."""
    env: Any = SimpleNamespace(sys=SimpleNamespace(link_names=["torso", "aux_1", "", "aux_2", ""]))
    for link, message in (
        ("hand", "unknown link 'hand'.*0 'torso', 1 'aux_1', 2 ''"),
        ("", "there is more than one link ''.*2 '', 3 'aux_2', 4 ''"),
        (5, "unknown link 5"),
        (-1, "unknown link -1"),
    ):
        with pytest.raises(InputError, match=message):
            brax_feet(env, ["torso", link])
    assert callable(brax_feet(env, ["aux_1", 2, 4]))


def test_playground_episodes_equal_its_own_loop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = pytest.importorskip("mujoco_playground").registry
        env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
        task = ppga.from_brax(
            env, lambda state: state.data.qpos[:1], name="cartpole", measure_names=["cart"],
            measure_ranges=[(-1.8, 1.8)], episode_length=5,
        )  # fmt: skip
        assert task.model is not None, "the task should have a model for drawing"
        scores = jax.jit(lambda key: evaluate(task, push, key, 2))(jax.random.key(0))
        starts = jax.jit(lambda key: task.reset(jax.random.split(key)[0], 2))(jax.random.key(0))
        state = jax.tree.map(lambda leaf: leaf[0], starts.bodies)
        step = jax.jit(env.step)
        total, carts = 0.0, []
        for number in range(5):
            state = step(state, jnp.sin(0.7 * jnp.array([number])))
            total += float(state.reward)
            carts.append(float(state.data.qpos[0]))
    np.testing.assert_allclose(scores.objective[0], total, rtol=1e-4)
    np.testing.assert_allclose(scores.measures[0], [np.mean(carts)], rtol=1e-3, atol=1e-6)


class Counter:
    """An environment like those of Brax that counts steps, and ends at 4, at a time limit if `limit`."""

    observation_size = action_size = 1

    def __init__(self, limit: bool) -> None:
        self.limit = limit

    def reset(self, rng: Array) -> Any:  # noqa: ARG002
        return self._state(jnp.zeros(1))

    def step(self, state: Any, action: Array) -> Any:  # noqa: ARG002
        return self._state(state.obs + 1)

    def _state(self, count: Array) -> Any:
        done = (count[0] >= 4).astype(jnp.float32)
        return CounterState(count, count[0], done, {"truncation": done} if self.limit else {})


@jax.tree_util.register_dataclass
@dataclass
class CounterState:
    obs: Array
    reward: Array
    done: Array
    info: dict[str, Array]


@jax.tree_util.register_dataclass
@dataclass
class BareState:
    """A state without `info`, so without marks of time limits."""

    obs: Array
    reward: Array
    done: Array


class BareCounter(Counter):
    def _state(self, count: Array) -> Any:
        return BareState(count, count[0], (count[0] >= 4).astype(jnp.float32))


@pytest.mark.parametrize("limit", [False, True])
def test_an_end_is_a_truncation_only_if_it_is_marked(limit: bool) -> None:
    task = ppga.from_brax(
        Counter(limit), lambda state: state.obs / 10, name="counter", measure_names=["count"]
    )
    state = task.reset(jax.random.key(0), 2)
    for _ in range(6):
        state = task.step(state, jnp.zeros((2, 1)))
    assert state.steps.tolist() == [4, 4]
    assert state.truncated.tolist() == [limit] * 2
    assert state.terminated.tolist() == [not limit] * 2


def test_without_info_every_end_is_a_termination() -> None:
    task = ppga.from_brax(
        BareCounter(False), lambda state: state.obs / 10, name="counter", measure_names=["count"]
    )
    state = task.reset(jax.random.key(0), 1)
    for _ in range(6):
        state = task.step(state, jnp.zeros((1, 1)))
    assert (state.steps.tolist(), state.terminated.tolist(), state.truncated.tolist()) == (
        [4],
        [True],
        [False],
    )


@pytest.mark.parametrize("kind", [list, tuple, jnp.array])
def test_measures_may_be_lists(kind: Any) -> None:
    """With as many environments as measures, transposed arrays would have the right shape."""
    task = ppga.from_brax(
        Counter(False), lambda state: kind([state.obs[0] / 10, 0.5]), name="counter", measure_names=["a", "b"]
    )
    state = task.reset(jax.random.key(0), 2)
    state = replace(state, bodies=replace(state.bodies, obs=jnp.array([[0.0], [2.0]])))
    after = task.step(state, jnp.zeros((2, 1)))
    np.testing.assert_allclose(after.proxies, [[0.1, 0.5], [0.3, 0.5]], rtol=1e-6)


def test_the_observation_of_policies_is_chosen_by_name() -> None:
    """Brax' environment for tests, with several observations, as in MuJoCo Playground's robots."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = brax().get_environment("fast", asymmetric_obs=True, obs_mode="dict_state")

    def made(**options: Any) -> Environment:
        return ppga.from_brax(
            env, lambda state: state.reward[None] * 0, name="fast", measure_names=["nothing"], **options
        )

    task = made(episode_length=4)
    assert task.observation_size == 2
    assert made(observation="privileged_state").observation_size == 4
    with pytest.raises(InputError, match=r"unknown observation 'pixels'.*Possible: .*state"):
        made(observation="pixels")
    state = task.step(task.reset(jax.random.key(0), 3), jnp.ones((3, 1)))
    np.testing.assert_allclose(state.observation, [[0.02 * 0.02, 0.02]] * 3, rtol=1e-5)
    state = task.restart(replace(state, terminated=jnp.array([True, False, True])), jax.random.key(1))
    np.testing.assert_allclose(state.observation[:, 1], [0.0, 0.02, 0.0], rtol=1e-5)


def test_measures_may_be_functions_of_the_sums() -> None:
    task = ppga.from_brax(
        Counter(True), lambda state: state.obs / 10, name="counter", measure_names=["count"],
        episode=lambda total, steps: total + 0 * steps[:, None],
    )  # fmt: skip
    scores = jax.jit(lambda key: evaluate(task, push, key, 2))(jax.random.key(0))
    np.testing.assert_allclose(scores.measures, [[1.0]] * 2)  # 0.1 + 0.2 + 0.3 + 0.4


def test_bad_measures_are_rejected_with_their_values() -> None:
    def made(measure: Any, **options: Any) -> Environment:
        return ppga.from_brax(Counter(False), measure, name="counter", measure_names=["count"], **options)

    with pytest.raises(
        InputError, match=r"\(1,\) for count of each environment, got \(1, 2\) for 1: \[\[0.0, 0.0\]\]"
    ):
        made(lambda state: jnp.zeros(2))  # noqa: ARG005
    with pytest.raises(InputError, match="finite pair"):
        made(lambda state: state.obs, measure_ranges=[(0.0, np.inf)])
    with pytest.raises(InputError, match=r"'count' is 2, which is not within its range \[0, 1\]"):
        made(lambda state: state.obs + 2)
    with pytest.raises(InputError, match="'count' is nan"):
        made(lambda state: state.obs / 0)
    with pytest.raises(InputError, match="archive_shape must have"):
        made(lambda state: state.obs, archive_shape=(3, 3))
    with pytest.raises(InputError, match="has no reset"):
        ppga.from_brax(object(), lambda state: state, name="no", measure_names=["x"])
