"""Environments of Gymnasium as tasks, compared with their own loops."""

from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import ppga
from ppga import InputError
from ppga.physics import Array
from ppga.rollouts import evaluate, explore
from ppga.tasks import Environment

from benchmarks.physics import through_jax


def upright(observation: np.ndarray, action: np.ndarray, info: dict[str, Any]) -> np.ndarray:  # noqa: ARG001
    return np.asarray(np.abs(observation[:, 1:2]) < 0.1)


def gym(**options: Any) -> Environment:
    return ppga.from_gymnasium("InvertedPendulum-v5", upright, measure_names=["upright"], **options)


def test_gymnasium_episodes_equal_its_own_loop() -> None:
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
            observation, reward, ended, _, _ = env.step(np.array([action]))
            total += float(reward)
            flags.append(abs(observation[1]) < 0.1)
            steps += 1
        assert int(scores.steps[number]) == steps
        np.testing.assert_allclose(scores.objective[number], total, rtol=1e-5)
        np.testing.assert_allclose(scores.measures[number], [np.mean(flags)], atol=1e-6)
        env.close()


def test_gymnasium_episodes_restart_and_stale_states_are_truncated() -> None:
    task = gym(episode_length=6)
    begin, step = jax.jit(task.reset, static_argnums=1), jax.jit(task.step)
    start = begin(jax.random.key(0), 2)
    after = step(start, jnp.zeros((2, 1)))
    assert after.steps.tolist() == [1, 1]
    # the old state is stale: its episodes are truncated, not terminated
    stale = step(start, jnp.zeros((2, 1)))
    assert stale.truncated.tolist() == [True, True]
    assert not stale.terminated.any()
    assert stale.steps.tolist() == [0, 0]
    assert stale.reward.tolist() == [0, 0]
    restarted = jax.jit(task.restart)(stale, jax.random.key(1))
    assert step(restarted, jnp.zeros((2, 1))).steps.tolist() == [1, 1]
    # so is a state of another process
    foreign = replace(start, bodies=start.bodies + 1_000_000)
    assert step(foreign, jnp.zeros((2, 1))).truncated.all()

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.zeros((2, 1))

    _, transitions = jax.jit(lambda key: explore(task, act, task.reset(key, 2), key, 20))(jax.random.key(2))
    assert transitions.taken.all()
    assert not transitions.terminated.any(), "these are time limits"
    jumps = np.abs(np.diff(np.asarray(transitions.observation)[:, :, 0], axis=1)).max(axis=0)
    assert (jumps[[5, 11, 17]] > 0).all()


def test_the_benchmark_of_gymnasium_counts_steps_and_no_resets() -> None:
    """Each call continues from the last one, and steps every environment as often as it returns."""
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
        make, lambda observation, *_: np.zeros((len(observation), 1)), name="cheetah", measure_names=["none"]
    )
    work = through_jax(task, 2, 3, continued=True)
    counts |= {"reset": 0, "step": 0}
    assert [work(), work()] == [6, 6]
    assert counts == {"reset": 0, "step": 6}


def test_a_run_with_gymnasium_is_resumed_with_new_episodes(tmp_path: Any) -> None:
    task = gym()
    config, _ = ppga.preset("smoke", task)
    ppga.train(task, config, budget=ppga.Budget(iterations=1), output=tmp_path / "run")
    outcome = ppga.resume(tmp_path / "run", budget=ppga.Budget(iterations=2), task=gym())
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2
    assert np.isfinite(outcome.archive.elites["objective"]).all()


def test_unsupported_environments_of_gymnasium_are_rejected() -> None:
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
        ppga.from_gymnasium(
            "InvertedPendulum-v5", lambda observation, *_: observation[:1, :1], measure_names=["a"]
        )
    with pytest.raises(InputError, match="'a' is 7"):  # in the second environment only
        ppga.from_gymnasium(
            "InvertedPendulum-v5",
            lambda observation, *_: np.array([[0.5], [7.0]])[: len(observation)],
            measure_names=["a"],
        )
    with pytest.raises(InputError, match="measure_ranges must be a finite pair"):
        gym(measure_ranges=(0, 1))
    with pytest.raises(InputError, match="the task needs a name: give name="):
        ppga.from_gymnasium(lambda n: n, upright, measure_names=["x"])
    made = ppga.from_gymnasium(
        lambda n: gymnasium.make_vec(
            "InvertedPendulum-v5", n, vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}
        ),
        upright, name="own", measure_names=["x"],
    )  # fmt: skip
    assert made.name == "own"
