"""Errors about tasks: a short message that says what was given and what is accepted."""

import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ppga
from ppga.machine import installed
from ppga.rollouts import evaluate, record
from ppga.tasks import Task
from ppga.tasks.locomotion import Hopper

from helpers.tasks import shared_task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "half-cheetah"}, "unknown task 'half-cheetah'. Did you mean 'halfcheetah'? Possible: "),
        ({"name": "Ant"}, "Did you mean 'ant'"),
        (
            {"name": ""},
            "unknown task ''. Possible: halfcheetah, walker2d, hopper, ant, humanoid, ",
        ),
        ({"physics": "mujocco"}, "unknown physics 'mujocco'. Did you mean 'mujoco'? Possible: mujoco, mjx."),
        ({"integrator": "rk4"}, "unknown integrator 'rk4'. Possible: fast, gymnasium."),
        ({"physics": "mjx", "impl": "wrap"}, "unknown MJX implementation 'wrap'. Did you mean 'warp'?"),
        ({"episode_length": 0}, "episode_length must be an integer of at least 1, got 0"),
        ({"episode_length": 2.5}, "episode_length must be an integer of at least 1, got 2.5"),
        pytest.param(
            {"physics": "mjx", "impl": "warp"},
            "pip install 'mujoco-mjx[warp]'",
            marks=pytest.mark.skipif(installed("warp"), reason="warp is installed"),
        ),
        ({"threads": -1}, "threads must be an integer of at least 1, got -1"),
    ],
)
def test_wrong_options_of_make_task(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ppga.make_task(**{"name": "hopper", **options})  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_foot_that_the_model_does_not_have() -> None:
    class Centipede(Hopper):
        feet: ClassVar = {"foot": ("foot_geom",), "hundredth": ("foot_100",)}

    with pytest.raises(ValueError, match=r"no geom named 'foot_100'. Its geoms: floor, torso_geom, "):
        Centipede()


def test_a_floor_that_the_model_does_not_have() -> None:
    class Flying(Hopper):
        floor = "ground"

    with pytest.raises(ValueError, match="no geom named 'ground'"):
        Flying()


def one_motor(actuator: str) -> type[Task]:
    class OneMotor(Hopper):
        feet: ClassVar = {}

        def spec(self) -> mujoco.MjSpec:
            body = '<body><joint name="j" type="slide"/><geom size=".1"/></body>'
            return mujoco.MjSpec.from_string(
                f"<mujoco><worldbody>{body}</worldbody><actuator>{actuator}</actuator></mujoco>"
            )

    return OneMotor


def test_an_actuator_without_a_range() -> None:
    with pytest.raises(ValueError, match="actuators without a control range: push"):
        one_motor('<motor name="push" joint="j"/>')()


def test_a_model_that_mujoco_cannot_compile() -> None:
    with pytest.raises(ValueError, match=r"MuJoCo cannot compile the model: .*nowhere"):
        one_motor('<motor joint="nowhere" ctrlrange="-1 1"/>')()


@pytest.mark.parametrize(
    ("function", "result", "message"),
    [
        (
            "initial",
            (jnp.zeros(3), jnp.zeros(6)),
            r"initial\(\) must return positions \(6,\) and velocities \(6,\), got",
        ),
        ("reward", jnp.zeros(1), r"reward\(\) must return shape \(\) for one body, got \(1,\)"),
        ("terminated", jnp.zeros((2,), bool), r"terminated\(\) must return shape \(\)"),
        ("proxies", jnp.zeros(3), r"proxies\(\) must return shape \(1,\) for one body, got \(3,\)"),
    ],
)
def test_a_task_function_of_the_wrong_shape(function: str, result: object, message: str) -> None:
    wrong = type("Wrong", (Hopper,), {function: lambda *_: result})
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("xposs", "unknown MjData field 'xposs'. Did you mean 'xpos'"),
        ("cfrc_ext", "does not compute .* 'cfrc_ext'"),
    ],
)
def test_a_field_that_does_not_exist_or_is_not_computed(field: str, message: str) -> None:
    wrong = type("Wrong", (Hopper,), {"derived": (field,)})
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (3,), (2, 3, 1)])
def test_an_action_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    task = shared_task("hopper")
    state = task.reset(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"hopper takes actions of shape \(2, 3\), got \("):
        task.step(state, np.zeros(shape).tolist())


@pytest.mark.parametrize("n", [0, -3])
def test_no_environments(n: int) -> None:
    task = shared_task("hopper")
    with pytest.raises(ValueError, match="number of environments must be an integer of at least 1"):
        evaluate(task, lambda *_: jnp.zeros((n, 3)), jax.random.key(0), n)
    with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
        record(task, lambda *_: jnp.zeros((1, 3)), jax.random.key(0), 1, n)


def test_the_error_of_a_missing_extra_has_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco.mjx", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"pip install 'ppga\[mjx\]'"):
        ppga.make_task("hopper", physics="mjx")


def test_a_model_that_mjx_cannot_run() -> None:
    """Gymnasium's humanoid asks for the PGS solver."""
    with pytest.raises(
        ValueError, match=r"MJX cannot run this model.*physics='mujoco', or integrator='fast'"
    ):
        ppga.make_task("humanoid", physics="mjx", integrator="gymnasium")
