"""Tasks whose measures are the final position: `ant-omni` and `point-maze`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppga.physics import Array
from ppga.rollouts import Recording, evaluate, record

from helpers.tasks import shared_task


@pytest.mark.parametrize("name", ["ant-omni", "point-maze"])
def test_the_measures_are_the_final_position(name: str) -> None:
    task = shared_task(name, episode_length=30)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.random.uniform(key, (len(observation), task.action_size), minval=-1.0)

    scores = jax.jit(lambda key: evaluate(task, act, key, 4))(jax.random.key(1))
    # again with one more step, because positions are recorded before a step
    longer = shared_task(name, episode_length=31)
    recording: Recording = jax.jit(lambda key: record(longer, act, key, 4, 31))(jax.random.key(1))
    qpos, taken = np.asarray(recording.qpos), np.asarray(scores.steps)
    for number, steps in enumerate(taken):
        if steps < 30:
            continue  # it fell, and in the recording its body moved on
        distance = qpos[number, 30, :2] - (qpos[number, 0, :2] if name == "ant-omni" else 0)
        # the ant's position is that before the last substep
        np.testing.assert_allclose(
            scores.measures[number], distance, atol=0.05 if name == "ant-omni" else 1e-4
        )
    assert (taken == 30).any()


def test_in_the_maze_the_direct_path_ends_at_a_wall() -> None:
    task = shared_task("point-maze")
    goal = jnp.array([0.7, 0.75])

    def straight(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.sign(goal - observation[:, :2])

    def around(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        legs = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        return legs[jnp.searchsorted(jnp.array([40, 65, 110, 135]), steps, side="right")]

    for act, passes in ((straight, False), (around, True)):
        score = jax.jit(lambda key, act=act: evaluate(task, act, key, 1))(jax.random.key(0))
        assert (float(score.measures[0, 1]) > 0.4) == passes
