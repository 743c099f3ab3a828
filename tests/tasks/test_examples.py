"""The examples: tasks in files, as users write them."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ppga
from ppga.physics import Array
from ppga.rollouts import Recording, evaluate, record
from ppga.tasks import find, robot

from helpers.tasks import ARM, QUADRUPED, registry_restored


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry_restored():
        yield


@pytest.mark.parametrize("argument", [ARM, QUADRUPED])
def test_the_examples_train(argument: str) -> None:
    config, budget = ppga.preset("smoke", argument)
    outcome = ppga.train(argument, config, budget=budget)
    archive = outcome.archive
    assert archive.description["task"]["name"] in argument
    assert len(archive) >= 1
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2
    low, high = np.array(archive.ranges).T
    measures = archive.elites["measures"]
    assert ((measures >= low) & (measures <= high)).all(), "the measures must lie in their ranges"
    assert np.ptp(measures, axis=0).max() > 0 or len(archive) == 1


@pytest.mark.parametrize("argument", [ARM, QUADRUPED])
def test_the_measures_of_the_examples_at_rest(argument: str) -> None:
    """The arm's hand is where plain MuJoCo has it, and the quadruped stands."""
    task = robot(find(argument), episode_length=5)

    def still(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jnp.zeros((len(observation), task.action_size))

    scores = jax.jit(lambda key: evaluate(task, still, key, 3))(jax.random.key(0))
    recording: Recording = jax.jit(lambda key: record(task, still, key, 3, 5))(jax.random.key(0))
    data = mujoco.MjData(task.model)
    for number in range(3):
        data.qpos = recording.qpos[number, -1]
        mujoco.mj_forward(task.model, data)
        if task.name == "arm":
            np.testing.assert_allclose(scores.measures[number], data.site("hand").xpos[:2], atol=0.02)
        else:
            np.testing.assert_allclose(scores.measures[number, 0], data.body("body").xpos[2], atol=0.06)
    assert (scores.steps == 5).all()
