"""A model whose memory is too small for its contacts: the run warns of it once."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga.distributed.ray_executor import RayExecutor
from ppga.distributed.shares import Worker
from ppga.physics import MujocoPhysics
from ppga.physics.mujoco_engine import silent
from ppga.policies.network import Network
from ppga.problems import PolicyProblem, PPOProblem
from ppga.rollouts import Executor
from ppga.runs.display import Lines

from helpers.settings import settings
from helpers.slider import Slider

CONTACTS, CONSTRAINTS = mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL


def balls(memory: str) -> str:
    """Forty balls in a row, all of which touch the floor."""
    row = "".join(f'<geom size=".1" pos="0 {number} 0"/>' for number in range(40))
    return f"""<mujoco>{memory}<worldbody><geom type="plane" pos="0 0 -.09" size="9 9 1"/>
    <body><joint name="x" type="slide" axis="1 0 0" damping="1"/>{row}</body></worldbody>
    <actuator><motor joint="x" ctrlrange="-1 1" gear="200"/></actuator></mujoco>"""


def full(model: mujoco.MjModel) -> set[Any]:
    """MuJoCo's own warnings in a step, or "stack" for an error."""
    data = mujoco.MjData(model)
    try:
        with silent():
            mujoco.mj_step(model, data)
    except mujoco.FatalError:
        return {"stack"}
    return {kind for kind in (CONTACTS, CONSTRAINTS) if data.warning[int(kind)].number}


@cache
def too_small(warnings: frozenset[Any]) -> str:
    """MJCF with the least memory for which MuJoCo has exactly these warnings."""
    sizes = (f'<size memory="{kib}K"/>' for kib in range(8, 128, 4))
    return next(text for text in map(balls, sizes) if full(mujoco.MjModel.from_xml_string(text)) == warnings)


def crate(*kinds: Any) -> Slider:
    text = too_small(frozenset(kinds)) if kinds else balls("")
    kind: type[Slider] = type("Crate", (Slider,), {"name": "crate", "mjcf": text})
    return kind(threads=2)


@pytest.mark.parametrize(
    ("kinds", "consequences"),
    [
        ((), []),
        ((CONSTRAINTS,), ["have no effect there"]),
        ((CONTACTS, CONSTRAINTS), ["contacts are left out", "have no effect there"]),
        (("stack",), ["these count as diverged"]),
    ],
)
def test_the_engine_warns_of_full_memory_and_names_the_fix(kinds: Any, consequences: list[str]) -> None:
    model = mujoco.MjModel.from_xml_string(too_small(frozenset(kinds)) if kinds else balls(""))
    physics = MujocoPhysics(model, 2, threads=2)
    shared = physics.for_callers(2)
    active = jnp.ones(3, bool)
    start = shared.reset(jnp.zeros((3, 1)), jnp.zeros((3, 1)), active)
    for _ in range(2):
        shared.step(start, jnp.zeros((3, 1)), active)
    warnings = sorted(physics.warnings)
    assert len(warnings) == len(consequences)
    for sentence, consequence in zip(warnings, consequences, strict=True):
        assert sentence.startswith("MuJoCo's memory is full in some simulations")
        assert consequence in sentence
        assert f"The model has {model.narena // 1024} KiB" in sentence
        assert f'<size memory="{2 * model.narena // 1024}K"/>' in sentence


def test_full_memory_in_an_evaluation_is_reported() -> None:
    """Each of several threads has an engine of its own."""
    task = crate(CONSTRAINTS)
    assert task.callers(40) == 2
    assert not task.simulation_warnings
    network = Network((task.observation_size, 4, task.action_size))
    problem = PolicyProblem(task, network)
    state = problem.init(jax.random.key(0))
    task.simulation_warnings.clear()
    problem.evaluate(state, problem.random(jax.random.key(1), 40), jax.random.key(2), episodes=1)
    assert len(task.simulation_warnings) == 1


def test_a_run_warns_of_full_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where MuJoCo would write its log
    output = io.StringIO()
    shown: list[list[str]] = []
    for task, times in ((crate(), 0), (crate(CONSTRAINTS), 1)):
        ppga.train(
            task, settings("map-elites"), budget=ppga.Budget(iterations=3),
            callbacks=[lambda iteration: shown.append(iteration.algorithm.warnings)],
            display=Lines(Console(file=output, width=500), quiet=True),
        )  # fmt: skip
        assert output.getvalue().count("MuJoCo's memory is full") == times
    assert [len(warnings) for warnings in shown] == [0, 0, 0, 1, 1, 1]
    assert "warning: iteration 1: MuJoCo's memory is full" in output.getvalue()
    assert list(tmp_path.iterdir()) == []
    assert "WARNING" not in capfd.readouterr().err


def test_warnings_of_workers_are_added_to_those_of_the_task() -> None:
    """The engines of the workers run all simulations."""
    config = settings(network=ppga.NetworkConfig((4,), (4,)))
    assert isinstance(config, ppga.PPGAConfig)

    def make_problem(executor: Executor | None = None) -> PPOProblem:
        return PPOProblem(crate(CONSTRAINTS), config.ppo, config.network, executor=executor)

    worker, executor = Worker(make_problem()), RayExecutor()

    class OneWorker:
        def run(self, kind: str, shared: list[Any], jobs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
            return [getattr(worker, kind)(shared[which], *own) for which, own in jobs]

    executor.pool, problem = OneWorker(), make_problem(executor)
    warnings = problem.simulation_warnings
    state = problem.init(jax.random.key(0))
    warnings.clear()
    problem.evaluate(state, problem.solution(state)[None], jax.random.key(1), episodes=1)
    assert len(warnings) == 1
    warnings.clear()
    problem.walk(state, np.array([1.0, 0.0]), jax.random.key(2), 1, scaled=False)
    assert len(warnings) == 1
