"""Policies on their way out: files that act as the policy does, and agents in Gymnasium."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest

import ppga
from ppga import export
from ppga.analysis.corrected import evaluate
from ppga.archives import Archive
from ppga.errors import InputError
from ppga.networks import Network
from ppga.policies import CLIP, Policy

from conftest import Done, command

RANGE = [[-0.4, 0.4], [0.0, 3.0], [-2.0, -1.0]]


def archive(activation: Any = "tanh", head: Any = "linear", cells: tuple[int, ...] = (0, 3, 8)) -> Archive:
    draws = np.random.default_rng(0)
    network = Network((5, 7, 6, 6 if head == "gaussian" else 3), activation, head)
    n = len(cells)
    elites = {
        "index": np.array(cells, np.int32),
        "solution": draws.normal(size=(n, network.parameters)).astype(np.float32),
        "objective": np.arange(n, dtype=np.float32),
        "measures": draws.random((n, 2)).astype(np.float32),
        "log_std": np.zeros((n, 3), np.float32),
        "observation_mean": draws.normal(size=(n, 5)).astype(np.float32),
        "observation_variance": draws.uniform(0.1, 9, (n, 5)).astype(np.float32),
        "observation_count": np.ones(n, np.float32),
    }
    description = {
        "task": {
            "name": "mine", "physics": "mujoco", "episode_length": 100, "integrator": "fast",
            "control_range": RANGE, "control_dt": 0.02,
        },
        "network": {**network.describe(), "observation_clip": CLIP},
        "shape": [3, 3], "ranges": [[0.0, 1.0]] * 2, "measure_names": ["a", "b"], "qd_offset": 0.0,
    }  # fmt: skip
    return Archive(description, elites)


def truth(made: Archive, cell: int, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By JAX, as judged while training."""
    network = Network.of(made.description["network"])
    action = Policy.of_elite(made.elite(cell)).mean_action(network, jax.numpy.asarray(seen))
    action = np.clip(np.asarray(action), -1, 1)
    low, high = np.array(RANGE).T
    return action, (low + high) / 2 + action * (high - low) / 2


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("head", ["linear", "tanh", "gaussian"])
def test_files_act_as_the_policy_does(activation: str, head: str, tmp_path: Path) -> None:
    made = archive(activation, head)
    seen = (10 * np.random.default_rng(1).normal(size=(50, 5))).astype(np.float32)
    action, control = truth(made, 3, seen)
    (file,) = export.export(made, [3], tmp_path, "onnx")
    assert file.name == "cell-00003.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = session.run(None, {"observation": seen})
    np.testing.assert_allclose(found[0], action, atol=1e-5)
    np.testing.assert_allclose(found[1], control, atol=1e-5)
    told = session.get_modelmeta().custom_metadata_map
    assert told["task"] == "mine"
    assert float(told["objective"]) == 1.0
    alone = session.run(["control"], {"observation": seen[:1]})[0]
    np.testing.assert_allclose(alone, control[:1], atol=1e-5)
    (file,) = export.export(made, [3], tmp_path, "npz")
    with np.load(file) as content:
        found = export.apply_parts(dict(content), seen)
    np.testing.assert_allclose(found[0], action, atol=1e-5)
    np.testing.assert_allclose(found[1], control, atol=1e-5)


@pytest.mark.parametrize("task", [{}, {"control_dt": None}])
def test_a_time_that_nobody_knows_is_not_written(task: dict[str, Any], tmp_path: Path) -> None:
    made = archive()
    known = {"name": "mine", "control_range": RANGE, **task}
    made = Archive(made.description | {"task": known}, made.elites)
    (file,) = export.export(made, [3], tmp_path, "onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert set(session.get_modelmeta().custom_metadata_map) == {"task", "cell", "objective", "measures"}
    (file,) = export.export(made, [3], tmp_path, "npz")
    with np.load(file) as content:
        assert np.isnan(content["control_dt"])


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_file_that_would_act_otherwise_is_not_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = export.parts

    def wrong(made: Archive, cell: int) -> dict[str, Any]:
        content = honest(made, cell)
        content["biases1"] = content["biases1"] + 0.01
        return content

    monkeypatch.setattr(export, "parts", wrong)
    with pytest.raises(InputError, match="would not act as its policy"):
        export.export(archive(), [3], tmp_path / "out", form)
    assert not list(tmp_path.glob("out/*"))


def test_the_command(tmp_path: Path) -> None:
    archive().save(tmp_path / "archive.safetensors")
    out = tmp_path / "out"

    def run(*words: str) -> Done:
        return command("export", str(tmp_path), "--output", str(out), *words)

    assert run("--all").returncode == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "cell-00000.onnx", "cell-00003.onnx", "cell-00008.onnx",
    ]  # fmt: skip
    assert "cell-00008.npz" in run("--best", "--format", "npz").stdout.replace("\n", "")
    for words, message in (
        ((), "which policies?"),
        (("--best", "--all"), "which policies?"),
        (("--cell", "5"), "cell 5 is empty"),
        (("--best", "--format", "onx"), "Did you mean 'onnx'"),
    ):
        refused = run(*words)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_solutions_that_are_no_policies_cannot_be_exported(tmp_path: Path) -> None:
    config = ppga.PPGAConfig(search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1))
    outcome = ppga.train("sphere", config, budget=ppga.Budget(iterations=1))
    with pytest.raises(InputError, match="are not policies"):
        export.export(outcome.archive, [0], tmp_path, "npz")


def test_an_elite_scores_in_gymnasium_what_it_scores_here(tmp_path: Path) -> None:
    """HalfCheetah-v5 itself, driven by an elite judged with the model file's own integrator."""
    steps = 100
    config, _ = ppga.preset("smoke", "halfcheetah", "map-elites")
    config = replace(
        config,
        simulation=replace(config.simulation, integrator="gymnasium", episode_length=steps),
        search=replace(config.search, branches=16),
    )
    outcome = ppga.train("halfcheetah", config, budget=ppga.Budget(iterations=2), output=tmp_path / "run")
    found = outcome.archive
    cell = found.best()
    here = evaluate(found.only(cell), 40)
    agent = found.agent(cell)
    with gymnasium.make("HalfCheetah-v5", max_episode_steps=steps) as env:
        scores = []
        for seed in range(40):
            seen, _ = env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                control, state = agent.predict(seen)
                assert state is None
                seen, reward, terminated, truncated, _ = env.step(control)
                total, over = total + float(reward), terminated or truncated
            scores.append(total)
    spread = float(np.std(scores)) + float(here.objective_spread[0])
    assert spread > 0
    assert np.mean(scores) == pytest.approx(float(here.objective[0]), abs=spread / np.sqrt(40) * 2.5)
