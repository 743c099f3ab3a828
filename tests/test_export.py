"""Export of policies to files that act as the policy does, and agents in Gymnasium."""

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
from ppga.policies.network import Network
from ppga.policies.policy import Policy

from helpers.archives import CONTROL_RANGE, archive
from helpers.commands import Done, command


def expected_output(original: Archive, cell: int, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and controls by JAX, as in an evaluation during training."""
    network = Network.of(original.description["network"])
    policy = Policy.of_elite(original.elite(cell))
    action = policy.mean_action(network, jax.numpy.asarray(observation))
    action = np.clip(np.asarray(action), -1, 1)
    low, high = np.array(CONTROL_RANGE).T
    return action, (low + high) / 2 + action * (high - low) / 2


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("head", ["linear", "tanh", "gaussian"])
def test_exported_files_act_as_the_policy_does(
    activation: str, head: str, clip: float | None, tmp_path: Path
) -> None:
    original = archive(activation, head)
    original.description["task"]["clip"] = clip
    observation = (10 * np.random.default_rng(1).normal(size=(50, 5))).astype(np.float32)
    clipped = observation if clip is None else np.clip(observation, -clip, clip)
    action, control = expected_output(original, 3, clipped)
    np.testing.assert_allclose(original.policy(3)(observation), action, atol=1e-5)
    (file,) = export.export(original, [3], tmp_path, "onnx")
    assert file.name == "cell-00003.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    output = session.run(None, {"observation": observation})
    np.testing.assert_allclose(output[0], action, atol=1e-5)
    np.testing.assert_allclose(output[1], control, atol=1e-5)
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["task"] == "mine"
    assert float(metadata["objective"]) == 1.0
    single = session.run(["control"], {"observation": observation[:1]})[0]
    np.testing.assert_allclose(single, control[:1], atol=1e-5)
    (file,) = export.export(original, [3], tmp_path, "npz")
    with np.load(file) as arrays:
        output = export.apply_arrays(dict(arrays), observation)
    np.testing.assert_allclose(output[0], action, atol=1e-5)
    np.testing.assert_allclose(output[1], control, atol=1e-5)


@pytest.mark.parametrize("task", [{}, {"control_dt": None}])
def test_an_unknown_control_dt_is_not_written(task: dict[str, Any], tmp_path: Path) -> None:
    original = archive()
    known = {"name": "mine", "control_range": CONTROL_RANGE, **task}
    original = Archive(original.description | {"task": known}, original.elites)
    (file,) = export.export(original, [3], tmp_path, "onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert set(session.get_modelmeta().custom_metadata_map) == {"task", "cell", "objective", "measures"}
    (file,) = export.export(original, [3], tmp_path, "npz")
    with np.load(file) as content:
        assert np.isnan(content["control_dt"])


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_file_that_acts_differently_is_not_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays_of = export.arrays_of

    def wrong(original: Archive, cell: int) -> dict[str, Any]:
        arrays = arrays_of(original, cell)
        arrays["biases1"] = arrays["biases1"] + 0.01
        return arrays

    monkeypatch.setattr(export, "arrays_of", wrong)
    with pytest.raises(InputError, match="the file's actions differ from the policy's"):
        export.export(archive(), [3], tmp_path / "out", form)
    assert not list(tmp_path.glob("out/*"))


def test_the_command_writes_a_file_for_each_chosen_elite(tmp_path: Path) -> None:
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
        ((), "choose the policies by one of --best"),
        (("--best", "--all"), "choose the policies by one of --best"),
        (("--cell", "5"), "cell 5 is empty"),
        (("--best", "--format", "onx"), "Did you mean 'onnx'"),
    ):
        refused = run(*words)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_solutions_that_are_not_policies_cannot_be_exported(tmp_path: Path) -> None:
    config = ppga.PPGAConfig().replace(**{"branches": 8, "strategy.sigma0": 5.0, "walk_updates": 1})
    outcome = ppga.train("sphere", config, budget=ppga.Budget(iterations=1))
    with pytest.raises(InputError, match="are not policies"):
        export.export(outcome.archive, [0], tmp_path, "npz")


def test_an_elite_has_the_same_score_in_gymnasium(tmp_path: Path) -> None:
    """HalfCheetah-v5, with an elite that was evaluated with the integrator of the model file."""
    steps = 100
    config, _ = ppga.preset("smoke", "halfcheetah", "map-elites")
    config = config.replace(
        **{"simulation.integrator": "gymnasium", "simulation.episode_length": steps, "batch_size": 16}
    )
    outcome = ppga.train("halfcheetah", config, budget=ppga.Budget(iterations=2), output=tmp_path / "run")
    cell = outcome.archive.best()
    evaluation = evaluate(outcome.archive.only(cell), 40)
    agent = outcome.archive.agent(cell)
    with gymnasium.make("HalfCheetah-v5", max_episode_steps=steps) as env:
        scores = []
        for seed in range(40):
            observation, _ = env.reset(seed=seed)
            total, done = 0.0, False
            while not done:
                control, state = agent.predict(observation)
                assert state is None
                observation, reward, terminated, truncated, _ = env.step(control)
                total, done = total + float(reward), terminated or truncated
            scores.append(total)
    std = float(np.std(scores)) + float(evaluation.objective_std[0])
    assert std > 0
    assert np.mean(scores) == pytest.approx(float(evaluation.objective[0]), abs=std / np.sqrt(40) * 2.5)
