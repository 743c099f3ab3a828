"""Environments of Brax, MuJoCo Playground and Gymnasium as tasks, each against its own loop."""

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import ppga
from ppga import InputError
from ppga.bench.physics import through_jax
from ppga.physics import Array
from ppga.rollouts import evaluate, explore
from ppga.tasks import Environment, brax_feet


def brax() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Brax says that it is no longer cared for
        return pytest.importorskip("brax.envs")


def pendulum() -> Environment:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = brax().get_environment("inverted_pendulum", backend="spring")

        def middle(state: Any) -> Array:
            return jnp.abs(state.obs[:1]) < 0.1

        return ppga.from_brax(env, middle, name="pendulum", measure_names=["middle"], episode_length=12)


def push(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """The same for all, by the clock."""
    return jnp.sin(0.7 * steps)[:, None] * jnp.ones((1, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MJX, for Brax
def test_brax_goes_on_as_in_its_own_loop() -> None:
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


def test_brax_trains_and_its_worlds_can_be_written_down(tmp_path: Any) -> None:
    """On Brax' environment for tests, which hardly moves; killed and resumed it ends as undisturbed."""
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
    whole = ppga.train(task, config, budget=ppga.Budget(iterations=2), output=tmp_path / "whole")
    ppga.train(task, config, budget=ppga.Budget(iterations=1), output=tmp_path / "parts")
    parts = ppga.resume(tmp_path / "parts", budget=ppga.Budget(iterations=2), task=task)
    assert len(whole.archive) == 1
    for name, values in whole.archive.elites.items():
        np.testing.assert_array_equal(parts.archive.elites[name], values)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "links"), [("walker2d", ["foot", "foot_left"]), ("ant", [2, 4, 6, 8])]
)  # fmt: skip
def test_the_papers_measures_on_its_simulators_family(name: str, links: list[str | int]) -> None:
    """Which foot touches, against MuJoCo's contacts of the same model in the same pose."""
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
    wanted = []
    for pose in poses:
        data.qpos = pose
        mujoco.mj_forward(model, data)
        touched = {int(geom) for contact in data.contact if contact.dist <= 0 for geom in contact.geom}
        wanted.append([bool(touched & geoms) for geoms in feet])
    agree = np.mean(np.asarray(touching) == np.array(wanted), axis=0)
    assert (agree > 0.96).all()
    shares = np.mean(wanted, axis=0)
    assert ((shares > 0) & (shares < 1)).all()


def test_feet_are_told_apart() -> None:
    """Brax' ant has four links without a name."""
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


def test_playground_goes_on_as_in_its_own_loop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = pytest.importorskip("mujoco_playground").registry
        env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
        task = ppga.from_brax(
            env, lambda state: state.data.qpos[:1], name="cartpole", measure_names=["cart"],
            measure_ranges=[(-1.8, 1.8)], episode_length=5,
        )  # fmt: skip
        assert task.model is not None, "it can be drawn"
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
    """An environment in the manner of Brax that counts, and ends at 4: by a time limit if it is told so."""

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
    """Without a word about time limits, or about anything."""

    obs: Array
    reward: Array
    done: Array


class BareCounter(Counter):
    def _state(self, count: Array) -> Any:
        return BareState(count, count[0], (count[0] >= 4).astype(jnp.float32))


@pytest.mark.parametrize("limit", [False, True])
def test_an_end_is_a_time_limit_only_if_it_says_so(limit: bool) -> None:
    task = ppga.from_brax(
        Counter(limit), lambda state: state.obs / 10, name="counter", measure_names=["count"]
    )
    state = task.reset(jax.random.key(0), 2)
    for _ in range(6):
        state = task.step(state, jnp.zeros((2, 1)))
    assert state.steps.tolist() == [4, 4]
    assert state.truncated.tolist() == [limit] * 2
    assert state.terminated.tolist() == [not limit] * 2


def test_without_any_information_every_end_is_for_good() -> None:
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
def test_measures_in_a_list_are_those_of_their_environment(kind: Any) -> None:
    """As many environments as measures: arrays the wrong way round would have the right shape."""
    task = ppga.from_brax(
        Counter(False), lambda state: kind([state.obs[0] / 10, 0.5]), name="counter", measure_names=["a", "b"]
    )
    state = task.reset(jax.random.key(0), 2)
    state = replace(state, bodies=replace(state.bodies, obs=jnp.array([[0.0], [2.0]])))
    after = task.step(state, jnp.zeros((2, 1)))
    np.testing.assert_allclose(after.proxies, [[0.1, 0.5], [0.3, 0.5]], rtol=1e-6)


def test_of_several_observations_one_is_seen() -> None:
    """Brax' environment for tests, with observations as MuJoCo Playground's robots have them."""
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


def test_measures_may_be_made_of_sums() -> None:
    task = ppga.from_brax(
        Counter(True), lambda state: state.obs / 10, name="counter", measure_names=["count"],
        episode=lambda total, steps: total + 0 * steps[:, None],
    )  # fmt: skip
    scores = jax.jit(lambda key: evaluate(task, push, key, 2))(jax.random.key(0))
    np.testing.assert_allclose(scores.measures, [[1.0]] * 2)  # 0.1 + 0.2 + 0.3 + 0.4


def test_what_brings_bad_measures_is_told_with_the_values() -> None:
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
    with pytest.raises(InputError, match="archive_shape must tell"):
        made(lambda state: state.obs, archive_shape=(3, 3))
    with pytest.raises(InputError, match="has no reset"):
        ppga.from_brax(object(), lambda state: state, name="no", measure_names=["x"])


def upright(observation: np.ndarray, action: np.ndarray, info: dict[str, Any]) -> np.ndarray:  # noqa: ARG001
    return np.asarray(np.abs(observation[:, 1:2]) < 0.1)


def gym(**options: Any) -> Environment:
    return ppga.from_gymnasium("InvertedPendulum-v5", upright, measure_names=["upright"], **options)


def test_gymnasium_goes_on_as_in_its_own_loop() -> None:
    task = gym(episode_length=15)
    assert (task.observation_size, task.control_range, task.control_dt) == (4, ((-3.0, 3.0),), 0.04)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.sin(0.7 * steps)[:, None] * jnp.array([[1.0], [0.1], [0.02]])

    scores = jax.jit(lambda key: evaluate(task, act, key, 3))(jax.random.key(5))
    keys = jax.random.split(jax.random.split(jax.random.key(5))[0], 3)
    for number, scale in enumerate((1.0, 0.1, 0.02)):
        env = gymnasium.make("InvertedPendulum-v5")
        env.reset(seed=int(jax.random.bits(keys[number]) >> 1))
        total, flags, steps, ended = 0.0, [], 0, False
        while steps < 15 and not ended:
            action = np.float32(3) * np.sin(np.float32(0.7 * steps)) * np.float32(scale)
            seen, reward, ended, _, _ = env.step(np.array([action]))
            total += float(reward)
            flags.append(abs(seen[1]) < 0.1)
            steps += 1
        assert int(scores.steps[number]) == steps
        np.testing.assert_allclose(scores.objective[number], total, rtol=1e-5)
        np.testing.assert_allclose(scores.measures[number], [np.mean(flags)], atol=1e-6)
        env.close()


def test_gymnasiums_episodes_begin_again_and_copies_are_cut_off() -> None:
    task = gym(episode_length=6)
    begin, step = jax.jit(task.reset, static_argnums=1), jax.jit(task.step)
    start = begin(jax.random.key(0), 2)
    after = step(start, jnp.zeros((2, 1)))
    assert after.steps.tolist() == [1, 1]
    # whoever holds the old state has been left behind: its episodes are over, and not for good
    left = step(start, jnp.zeros((2, 1)))
    assert left.truncated.tolist() == [True, True]
    assert not left.terminated.any()
    assert left.steps.tolist() == [0, 0]
    assert left.reward.tolist() == [0, 0]
    again = jax.jit(task.restart)(left, jax.random.key(1))
    assert step(again, jnp.zeros((2, 1))).steps.tolist() == [1, 1]
    # a state of another process likewise
    strange = replace(start, bodies=start.bodies + 1_000_000)
    assert step(strange, jnp.zeros((2, 1))).truncated.all()

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.zeros((2, 1))

    _, film = jax.jit(lambda key: explore(task, act, task.reset(key, 2), key, 20))(jax.random.key(2))
    assert film.lived.all()
    assert not film.terminated.any(), "time limits"
    jumps = np.abs(np.diff(np.asarray(film.observation)[:, :, 0], axis=1)).max(axis=0)
    assert (jumps[[5, 11, 17]] > 0).all()


def test_timing_gymnasium_times_steps_and_not_starts() -> None:
    """Calls go on from each other; each steps every environment as often as it says."""
    counts = {"reset": 0, "step": 0}

    class Counted(gymnasium.vector.SyncVectorEnv):
        def reset(self, **options: Any) -> Any:
            counts["reset"] += 1
            return super().reset(**options)

        def step(self, actions: Any) -> Any:
            counts["step"] += 1
            return super().step(actions)

    def make(n: int) -> Any:
        return Counted([lambda: gymnasium.make("HalfCheetah-v5")] * n, autoreset_mode=AutoresetMode.DISABLED)

    task = ppga.from_gymnasium(
        make, lambda seen, *_: np.zeros((len(seen), 1)), name="cheetah", measure_names=["none"]
    )
    work = through_jax(task, 2, 3, onwards=True)
    counts |= {"reset": 0, "step": 0}
    assert [work(), work()] == [6, 6]
    assert counts == {"reset": 0, "step": 6}


def test_gymnasium_trains_and_goes_on_with_new_episodes(tmp_path: Any) -> None:
    task = gym()
    config, _ = ppga.preset("smoke", task)
    ppga.train(task, config, budget=ppga.Budget(iterations=1), output=tmp_path / "run")
    outcome = ppga.resume(tmp_path / "run", budget=ppga.Budget(iterations=2), task=gym())
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2
    assert np.isfinite(outcome.archive.elites["objective"]).all()


def test_what_gymnasium_cannot_be_asked_for_is_told() -> None:
    with pytest.raises(InputError, match=r"Gymnasium: .*Nothing"):
        ppga.from_gymnasium("Nothing-v0", upright, measure_names=["x"])
    with pytest.raises(InputError, match="must be Boxes"):
        ppga.from_gymnasium("CartPole-v1", upright, measure_names=["x"])
    with pytest.raises(InputError, match="make its vector environments with autoreset_mode"):
        ppga.from_gymnasium(
            lambda n: gymnasium.make_vec("InvertedPendulum-v5", n), upright, name="p", measure_names=["x"]
        )
    with pytest.raises(
        InputError, match=r"shape \(2,\) for a, b of each environment, got \(2, 1\) for 2: \[\["
    ):
        ppga.from_gymnasium("InvertedPendulum-v5", upright, measure_names=["a", "b"])
    with pytest.raises(InputError, match=r"got \(1, 1\) for 2"):
        ppga.from_gymnasium("InvertedPendulum-v5", lambda seen, *_: seen[:1, :1], measure_names=["a"])
    with pytest.raises(InputError, match="'a' is 7"):  # in the second environment only
        ppga.from_gymnasium(
            "InvertedPendulum-v5", lambda seen, *_: np.array([[0.5], [7.0]])[: len(seen)], measure_names=["a"]
        )
    with pytest.raises(InputError, match="measure_ranges must be a finite pair"):
        gym(measure_ranges=(0, 1))
    with pytest.raises(InputError, match="what is the task called"):
        ppga.from_gymnasium(lambda n: n, upright, measure_names=["x"])
    made = ppga.from_gymnasium(
        lambda n: gymnasium.make_vec(
            "InvertedPendulum-v5", n, vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}
        ),
        upright, name="own", measure_names=["x"],
    )  # fmt: skip
    assert made.name == "own"
