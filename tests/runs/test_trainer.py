"""Training: budgets, callbacks, and the elites that a run starts with."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga import Budget, InputError
from ppga.physics import Array
from ppga.problems import Sphere
from ppga.runs.build import make_algorithm
from ppga.tasks.maze import PointMaze

from helpers.runs import SPHERE


def test_without_an_output_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = ppga.train("sphere", SPHERE, budget=Budget(iterations=2))
    assert outcome.folder is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "iterations"),
    [
        (Budget(iterations=3), 3),
        (Budget(evaluations=20), 3),  # 9 an iteration
        (Budget(evaluations=1000, iterations=2), 2),
        (Budget(minutes=1e-9), 1),
    ],
)
def test_a_budget_ends_the_run(budget: Budget, iterations: int) -> None:
    outcome = ppga.train("sphere", SPHERE, budget=budget)
    assert outcome.record is not None
    assert outcome.record["iteration"] == iterations


@pytest.mark.parametrize(
    "budget", [Budget(), Budget(iterations=0), Budget(minutes=-1.0), Budget(minutes=float("nan"))]
)
def test_budgets_that_cannot_work_are_rejected(budget: Budget) -> None:
    with pytest.raises(InputError, match="budget"):
        ppga.train("sphere", SPHERE, budget=budget)


def test_a_budget_that_is_never_used_up_is_rejected() -> None:
    with pytest.raises(InputError, match="not simulated"):
        ppga.train("sphere", SPHERE, budget=Budget(env_steps=100))


def test_callbacks_get_every_iteration_and_can_stop_the_run() -> None:
    iterations = []

    def stop_after_four(iteration: ppga.Iteration) -> None:
        iterations.append(iteration.record["iteration"])
        iteration.stop = iteration.record["iteration"] == 4

    ppga.train("sphere", SPHERE, budget=Budget(iterations=100), callbacks=[stop_after_four])
    assert iterations == [1, 2, 3, 4]


def test_elites_survive_as_often_as_the_settings_say(tmp_path: Path) -> None:
    """Random policies of hoppers may fall within 30 steps."""
    config, budget = ppga.preset("smoke", "hopper", "map-elites")
    config = config.replace(**{"simulation.episode_length": 30, "batch_size": 24})
    archive = ppga.train("hopper", config, budget=budget).archive
    survival, length = archive.elites["survival"], archive.elites["length"]
    assert (survival < 1).any()
    assert (survival == 1).any()
    np.testing.assert_array_equal(length == 30, survival == 1)
    assert archive.survivor_coverage == (survival >= 0.75).mean() * archive.coverage
    picky = config.replace(**{"evaluation.min_survival": 1.0})
    survivors = ppga.train("hopper", picky, budget=budget).archive
    assert 0 < len(survivors) < len(archive)
    np.testing.assert_array_equal(survivors.elites["survival"], 1)
    unknown = {name: values for name, values in archive.elites.items() if name != "survival"}
    replace(archive, elites=unknown).save(tmp_path / "old.safetensors")
    with pytest.raises(InputError, match="needs to know how often the elites of the initial archive survive"):
        ppga.train("hopper", replace(picky, init_from=str(tmp_path / "old.safetensors")), budget=budget)


# Runs that start with the elites of another run.


def test_a_run_can_start_with_the_elites_of_another(tmp_path: Path) -> None:
    first = ppga.train("sphere", SPHERE, budget=Budget(iterations=10), output=tmp_path / "first")
    config = replace(SPHERE, init_from=str(tmp_path / "first"), seed=5)
    second = ppga.train("sphere", config, budget=Budget(iterations=1))
    assert second.archive.qd_score >= first.archive.qd_score
    assert set(first.archive.elites["index"]) <= set(second.archive.elites["index"])
    assert second.record is not None
    best = first.archive.elite(first.archive.best())
    assert second.record["search_objective"] == pytest.approx(best["objective"], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["ppga", "ppga-no-measures", "cma-maega-td3-es", "sep-cma-mae"])
def test_initial_elites_move_the_thresholds_of_the_soft_archive(algorithm: str) -> None:
    """An algorithm that starts with elites gains nothing by finding the same ones again."""
    task = "hopper" if algorithm == "cma-maega-td3-es" else "sphere"
    config, _ = ppga.preset("smoke", task, algorithm)
    started = make_algorithm(task, config.replace(**{"archive.alpha": 1.0, "archive.threshold_min": -1e6}))
    n = 5
    low, high = np.array(started.problem.measure_ranges).T
    fields = {name: np.ones((n, *shape), np.float32) for name, shape in started.problem.fields.items()}
    elites = {
        "solution": np.zeros((n, started.problem.solution_size), np.float32),
        "objective": np.arange(n, dtype=np.float32),
        "measures": np.linspace(low, high, n).astype(np.float32),
        **fields,
    }
    started.start(elites)
    assert started.soft is not None
    again = started.soft.add(elites["solution"], elites["objective"], elites["measures"])
    assert not again.entered.any()
    np.testing.assert_array_equal(again.improvement, np.zeros(n))


def test_a_run_resumes_without_the_elites_that_it_started_with(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=2), output=tmp_path / "first")
    config = replace(SPHERE, init_from=str(tmp_path / "first"), seed=5)
    ppga.train("sphere", config, budget=Budget(iterations=1), output=tmp_path / "run")
    (tmp_path / "first").rename(tmp_path / "moved")
    outcome = ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2


def test_initial_elites_keep_their_number_of_episodes(tmp_path: Path) -> None:
    first = ppga.train("sphere", SPHERE, budget=Budget(iterations=3)).archive
    known = {**first.elites, "episodes": np.arange(2, 2 + len(first), dtype=np.int32)}
    replace(first, elites=known).save(tmp_path / "known.safetensors")
    config = replace(SPHERE, init_from=str(tmp_path / "known.safetensors"), seed=5)
    second = ppga.train("sphere", config, budget=Budget(iterations=1)).archive
    then = dict(zip(first.elites["objective"], known["episodes"], strict=True))
    kept = [
        (then[objective], episodes)
        for objective, episodes in zip(second.elites["objective"], second.elites["episodes"], strict=True)
        if objective in then
    ]
    assert kept
    assert all(before == now for before, now in kept)


class DeterministicMaze(PointMaze):
    """Every episode starts alike, so that a policy's score is one number."""

    name = "deterministic-maze"

    def initial(self, key: Array) -> tuple[Array, Array]:
        del key
        return jnp.array([-0.7, -0.75]), jnp.zeros(2)


def test_a_run_takes_over_the_normalizer_of_its_initial_elites(tmp_path: Path) -> None:
    """Where a run has a single normalizer, initial elites score as in their archive."""
    config, _ = ppga.preset("smoke", "point-maze", "map-elites")
    config = replace(config, confirm=None)
    task = DeterministicMaze(episode_length=20)
    first = ppga.train(task, config, budget=Budget(iterations=1), output=tmp_path / "first").archive
    second = make_algorithm(task, replace(config, seed=5))
    second.start(ppga.load_archive(tmp_path / "first").elites)
    best = first.elite(first.best())
    normalizer = second.problem_state.normalizer
    for name in ("mean", "variance", "count"):
        np.testing.assert_array_equal(getattr(normalizer, name), best[f"observation_{name}"])
    own = second.problem.init(second.key("start")).normalizer
    assert not np.allclose(own.mean, best["observation_mean"], rtol=1e-3), "the test would test nothing"
    scores = second.problem.evaluate(
        second.problem_state, np.repeat(best["solution"][None], 4, axis=0), jax.random.key(0), 1
    )
    np.testing.assert_allclose(scores.objective, best["objective"], rtol=1e-6)
    np.testing.assert_allclose(scores.measures, [best["measures"]] * 4, rtol=1e-6)


def test_a_run_can_start_with_a_single_policy(tmp_path: Path) -> None:
    first = ppga.train("sphere", SPHERE, budget=Budget(iterations=5)).archive
    first.only(first.best()).save(tmp_path / "policy.safetensors")
    assert len(ppga.load_archive(tmp_path / "policy.safetensors")) == 1
    config = replace(SPHERE, init_from=str(tmp_path / "policy.safetensors"))
    second = ppga.train("sphere", config, budget=Budget(iterations=1))
    assert second.record is not None
    assert second.record["search_objective"] == pytest.approx(first.elites["objective"].max(), rel=1e-5)


def test_initial_elites_of_another_task_are_rejected(tmp_path: Path) -> None:
    ppga.train("sphere", SPHERE, budget=Budget(iterations=1), output=tmp_path / "sphere")
    config, budget = ppga.preset("smoke", "hopper")
    with pytest.raises(InputError, match="of sphere, and this run of hopper"):
        ppga.train("hopper", replace(config, init_from=str(tmp_path / "sphere")), budget=budget)


def test_initial_elites_with_scores_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    small = Sphere(solution_size=10)
    ppga.train(small, SPHERE, budget=Budget(iterations=1), output=tmp_path / "run")
    config = replace(SPHERE, init_from=str(tmp_path / "run"))
    with pytest.raises(InputError, match="its dimensions is 10, and this run's 20"):
        ppga.train("sphere", config, budget=Budget(iterations=1))
