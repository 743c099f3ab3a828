"""All algorithms: they run, they resume exactly, and their archives can be used."""

import io
import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import AlgorithmConfig, Budget, InputError, Iteration
from ppga.algorithms import ALGORITHMS, config_from_json, config_to_json
from ppga.analysis import corrected
from ppga.analysis.report import report
from ppga.analysis.runs import read_run
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.runs.build import make_algorithm
from ppga.runs.display import Lines
from ppga.runs.folder import RunFolder
from ppga.search import LegConfig, RewardPhaseConfig
from ppga.viewer.player import Player

from helpers.runs import lines, same_runs

LOG = ppga.LoggingConfig(checkpoint_seconds=0, snapshot_iterations=1, tensorboard=False)
SUPPORT_ANALYTIC_PROBLEMS = {"ppga", "ppga-no-measures", "map-elites", "sep-cma-mae", "ppo"}
SPHERE: dict[str, dict[str, Any]] = {
    "ppga": {
        "branches": 12,
        "walk_updates": 1,
        "strategy.sigma0": 5.0,
        "confirm": None,
        "objective": None,
        "phases": None,
        "legs": None,
    },
    "map-elites": {"variation.iso_sigma": 0.5, "variation.line_sigma": 0.3},
    "sep-cma-mae": {"emitters": 3, "sigma0": 5.0},
    "ppo": {"walk_updates": 1},
}
"""Algorithm -> settings for the sphere."""


def on_sphere(algorithm: str, **changes: Any) -> AlgorithmConfig:
    settings = SPHERE["ppga" if algorithm == "ppga-no-measures" else algorithm]
    if algorithm in ("map-elites", "sep-cma-mae"):
        settings = {"batch_size": 12, **settings}
    config, _ = ppga.preset("laptop", "sphere", algorithm)
    return replace(config.replace(**{"confirm": None, **settings, **changes}), seed=3, log=LOG)


# Exact resume.


def copy_in(iteration: int, run: Path, copy: Path) -> Callable[[Iteration], None]:
    """A callback that copies a run's folder as a kill in the middle of an iteration would leave it."""

    def callback(now: Iteration) -> None:
        if now.record["iteration"] == iteration:
            shutil.copytree(run, copy)

    return callback


def check_resume(task: str, config: AlgorithmConfig, iterations: int, run: Path) -> None:
    """Run, resume from what a kill in the last but one iteration leaves, and compare."""
    killed = run.with_name(f"{run.name}-killed")
    budget = Budget(iterations=iterations)
    ppga.train(task, config, budget=budget, output=run, callbacks=[copy_in(iterations - 1, run, killed)])
    output = io.StringIO()
    ppga.resume(killed, budget=budget, display=Lines(Console(file=output, width=300)))
    assert f"resuming after iteration {iterations - 2}" in output.getvalue()
    same_runs(run, killed)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("ppga", {}),
        ("map-elites", {}),
        ("ppo", {}),
        ("ppga-no-measures", {}),
        ("sep-cma-mae", {}),
        ("ppga", {"strategy.kind": "cma-es"}),
        ("ppga", {"step": "recombination"}),
        (
            "ppga",
            {
                "legs": LegConfig(iterations=3, first_iterations=0, elite="sparse"),
                "phases": RewardPhaseConfig(first_iterations=0, updates=1, every=2, iterations=0),
            },
        ),
    ],
)
def test_a_killed_run_resumes_exactly_on_the_sphere(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    check_resume("sphere", on_sphere(algorithm, **changes), 30, tmp_path / "run")
    if algorithm != "ppga-no-measures":  # which reaches the optimum at once
        scores = [line["qd_score"] for line in lines(tmp_path / "run")]
        assert scores[-1] > 1.05 * scores[4], "the archive improves"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of an algorithm on a robot, made at the first call, and compared with a resumed one."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(algorithm: str) -> Path:
        config, _ = ppga.preset("smoke", "hopper", algorithm)
        check_resume("hopper", replace(config, log=LOG), 5, folder / algorithm)
        return folder / algorithm

    return run


@pytest.fixture(params=ALGORITHMS)
def robot_run(request: pytest.FixtureRequest, run_of: Callable[[str], Path]) -> Path:
    return run_of(request.param)


def test_a_killed_run_resumes_exactly_on_a_robot(robot_run: Path) -> None:
    """The fixture compares; here the metrics must be complete."""
    for line in lines(robot_run):
        for name in ("evaluations", "env_steps", "qd_score", "coverage", "best", "mean", "new_elites"):
            assert name in line
    assert [line["iteration"] for line in lines(robot_run)] == [1, 2, 3, 4, 5]
    assert lines(robot_run)[-1]["elites"] > 0


# Results.


def test_an_archive_of_any_algorithm_can_be_used(robot_run: Path) -> None:
    """The archive's own policy function is the policy that was evaluated."""
    run = read_run(robot_run)
    archive = ppga.load_archive(robot_run)
    assert run.algorithm == archive.description["algorithm"]
    evaluation = corrected.evaluate(archive, 2)
    assert np.isfinite(evaluation.objective).all()
    task = ppga.make_task("hopper", episode_length=20)
    act = archive.policy(archive.best())
    network = Network.of(archive.description["network"])
    observations = np.random.default_rng(0).normal(size=(7, task.observation_size)).astype(np.float32)
    policy = Policy.of_elite(archive.elite(archive.best()))
    expected = np.clip(policy.mean_action(network, jax.numpy.asarray(observations)), -1, 1)
    np.testing.assert_allclose(act(observations), expected, rtol=1e-4, atol=1e-5)
    assert act(observations).shape == (7, task.action_size)
    episode = Player(task, network).play(archive, archive.best())
    assert 1 <= len(episode) <= 20
    assert np.isfinite(episode.objective)


def test_a_report_has_figures_of_all_kinds_of_policies(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    algorithms = ("map-elites", "ppga-no-measures", "pbt-me-sac")  # without a learner, by PPO, by SAC
    page = report([run_of(name) for name in algorithms], tmp_path)
    assert "could not be drawn" not in page.read_text()
    files = {file.name for file in (tmp_path / "figures").iterdir()}
    assert "hopper-qd_score-evaluations.svg" in files
    for name in algorithms:
        for figure in (
            "heatmap.png",
            "heatmap-shared.png",
            "frames.png",
            "gaits.png",
            "growth.gif",
            "times.png",
        ):
            assert f"hopper-{name}-{figure}" in files


def test_env_steps_of_learning_and_evaluation_are_counted(robot_run: Path) -> None:
    _, config, _ = RunFolder(robot_run).read()
    settings: Any = config
    last = lines(robot_run)[-1]
    least = most = 64 * 100  # a warm-up that initializes the normalizer
    if config.algorithm == "pbt-me-sac":
        least = most = least + 5 * settings.population * settings.sac.environments * settings.sac.steps
    if hasattr(config, "ppo"):
        update = settings.ppo.environments * settings.ppo.rollout_length
        least = most = (1 + 5) * update
        if config.algorithm in ("ppga", "ppga-no-measures"):  # walks are left out while nothing improves
            most += 5 * update
    assert least < last["env_steps"] <= most + 20 * last["episodes"]
    assert last["episodes"] >= last["evaluations"]


def test_without_measures_only_the_reward_is_followed(tmp_path: Path) -> None:
    ppga.train("sphere", on_sphere("ppga-no-measures"), budget=Budget(iterations=3), output=tmp_path / "run")
    for line in lines(tmp_path / "run"):
        assert np.shape(line["strategy_mean"]) == (1,)
        assert np.shape(line["jacobian_lengths"]) == (1,)


# Settings.


def test_an_algorithm_that_needs_transitions_is_rejected_without_a_simulation() -> None:
    assert {
        name for name in ALGORITHMS if ALGORITHMS[name].algorithm.supports_analytic_problems
    } == SUPPORT_ANALYTIC_PROBLEMS
    for name in ALGORITHMS.keys() - SUPPORT_ANALYTIC_PROBLEMS:
        config, _ = ppga.preset("smoke", "sphere", name)
        with pytest.raises(InputError, match=f"{name} learns from transitions, and sphere has none"):
            ppga.train("sphere", config, budget=Budget(iterations=1))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_presets_fit_every_task(name: str) -> None:
    for preset, task in itertools.product(ALGORITHMS[name].presets, ppga.TASKS):
        config, budget = ppga.preset(preset, task, name)
        assert config.algorithm == name
        budget.check()
        config.check(4 if task == "ant" else 1 if task == "hopper" else 2)
        assert config_from_json(config_to_json(config)) == config


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "paper" in ALGORITHMS[name].presets])
def test_the_preset_paper_evaluates_candidates_once(name: str) -> None:
    assert ppga.preset("paper", "walker2d", name)[0].confirm is None


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("pga-me", {"critic_steps": 3}, "--critic-steps must be a multiple of --td3.policy-delay"),
        ("pga-me", {"policy_steps": 0}, "--policy-steps must"),
        ("pga-me", {"td3.batch_size": 0}, "--td3.batch-size must"),
        ("pga-me", {"td3.gamma": 1.5}, "--td3.gamma must lie"),
        ("pga-me", {"td3.buffer_size": 10**12}, "would fit"),
        ("pga-me", {"gradient_share": 2.0}, "--gradient-share must lie"),
        ("td3ga", {"walk_updates": 3}, "--walk-updates must be a multiple"),
        ("td3ga", {"jacobian_updates": 3}, "--jacobian-updates must be a multiple"),
        ("td3ga", {"phases.updates": 3}, "--phases.updates must be a multiple"),
        ("td3ga", {"critic_steps": 2}, "unknown setting"),
        ("pbt-me-sac", {"sac.steps": 15}, "multiple of --sac.chunk"),
        ("pbt-me-sac", {"best_share": 0.5, "worst_share": 0.5, "archive_share": 0.5}, "at most 1"),
        ("pbt-me-sac", {"sac.learning_rates": (1.0, 0.1)}, "low and high"),
        ("pbt-me-sac", {"sac.gammas": (0.9, 1.01)}, "must not exceed 1"),
        ("pbt-me-sac", {"archive.shape": (10**9,)}, "an archive at most 10,000,000 cells"),
        (
            "pbt-me-sac",
            {"archive.shape": (10**7,), "network.actor": (10**3, 10**3)},
            "a full archive of 10,000",
        ),
        ("cma-maega-td3-es", {"es.samples": 5}, "mirrored pairs"),
        ("cma-maega-td3-es", {"policy_steps": 2}, "unknown setting"),
        ("map-elites", {"variation.line_sigma": -1.0}, "--variation.line-sigma must lie"),
        ("map-elites", {"batch_size": 1}, "--batch-size must be an integer of at least 2"),
        ("qdpg", {"emitters": 2}, "unknown setting"),
        ("sep-cma-mae", {"emitters": 3}, "--batch-size 4 is divided among --emitters 3"),
        ("ppga", {"branches": 0}, "--branches must be an integer of at least 2, got 0"),
        ("ppga", {"branches": 1}, "--branches must be an integer of at least 2, got 1"),
        ("ppga", {"legs": None}, "--legs none also needs --phases.every 0"),
        ("ppga", {"legs.iterations": -1}, "--legs.iterations must be an integer of at least 0"),
        ("ppo", {"walk_updates": 0}, "--walk-updates must"),
        ("ppo", {"legs.iterations": 3}, "unknown setting"),
    ],
)
def test_settings_that_cannot_work_are_rejected(
    algorithm: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config, budget = ppga.preset("smoke", "hopper", algorithm)
    with pytest.raises(InputError, match=message):
        ppga.train("hopper", config.replace(**changes), budget=budget, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_steps_that_an_algorithm_takes_must_be_multiples_of_the_delay() -> None:
    config, _ = ppga.preset("smoke", "hopper", "td3ga")
    steps = {"jacobian_updates": 6, "walk_updates": 9, "phases.updates": 3}
    config.replace(**{"td3.policy_delay": 3, **steps}).check(1)


def test_the_replay_buffer_holds_what_policies_observed_and_did() -> None:
    """On halfcheetah, whose velocities are far from 1: the actor's action for each stored observation."""
    config, _ = ppga.preset("smoke", "halfcheetah", "pga-me")
    algorithm = make_algorithm("halfcheetah", config)
    problem: Any = algorithm.problem
    problem.open(None)
    algorithm.start()
    policies = 3 * problem.random(jax.random.key(1), 4)
    problem.evaluate(algorithm.problem_state, policies, jax.random.key(2), 2)
    assert len(problem.replay) == 4 * 2 * 20
    rows = problem.replay.at(np.arange(160)).reshape(8, 20, -1)
    normalizer = algorithm.problem_state.normalizer
    batch = problem.layout.split(problem.layout.normalize(jax.numpy.asarray(rows), normalizer))
    pairs = zip(np.repeat(policies, 2, axis=0), batch.observation, batch.action, strict=True)
    for policy, observation, action in pairs:
        np.testing.assert_allclose(problem.actor(policy, observation), action, atol=1e-4)
    assert np.abs(np.asarray(batch.observation)).max() > 2
    np.testing.assert_allclose(batch.observation[:, 1:], batch.next_observation[:, :-1], atol=1e-5)
