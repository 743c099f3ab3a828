"""PPGA: Algorithm 1 on a problem with known gradients, and each of its extensions."""

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ribs.archives import GridArchive
from ribs.emitters import GradientArborescenceEmitter
from ribs.schedulers import Scheduler

import ppga
from ppga import Budget, PPGAConfig
from ppga.algorithms import PPGA
from ppga.algorithms import ppga as algorithm_1
from ppga.archives import SoftArchiveConfig
from ppga.problems import Evaluation, Sphere
from ppga.runs.build import make_algorithm
from ppga.runs.results import to_archive
from ppga.search import (
    ConfirmationConfig,
    LegConfig,
    LegSchedule,
    ObjectiveConfig,
    RestartRule,
    RewardPhaseConfig,
    StochasticEvaluationConfig,
    recombined_mean,
)  # fmt: skip
from ppga.strategies import StrategyConfig

CONFIG = PPGAConfig(
    evaluation=StochasticEvaluationConfig(episodes=2),
    confirm=None,
    archive=SoftArchiveConfig(alpha=0.1, threshold_min=0.0),
    branches=36,
    walk_updates=5,
    strategy=StrategyConfig(sigma0=10.0),
    objective=None,
    phases=None,
    legs=None,
)
LEGS = LegConfig(iterations=3, first_iterations=0, elite="random")


def phases(first_iterations: int, every: int = 0, iterations: int = 0) -> RewardPhaseConfig:
    return RewardPhaseConfig(first_iterations, updates=7, every=every, iterations=iterations)


def started(config: PPGAConfig = CONFIG, problem: Sphere | None = None) -> PPGA:
    algorithm = make_algorithm(problem or "sphere", config)
    assert isinstance(algorithm, PPGA)
    algorithm.start()
    return algorithm


def evaluate(points: np.ndarray, problem: Sphere | None = None) -> Evaluation:
    """Exact scores of points (n, d)."""
    return (problem or Sphere()).evaluate(None, points, jax.random.key(0), 1)


def unit_gradients(algorithm: PPGA) -> np.ndarray:
    """Gradients (k+1, d) at the search point, scaled to length 1."""
    _, gradients, _ = algorithm.problem.jacobian(algorithm.problem_state, None, 1)
    return np.asarray(gradients / np.linalg.norm(gradients, axis=1, keepdims=True))


def search_point(algorithm: PPGA) -> np.ndarray:
    return algorithm.problem.solution(algorithm.problem_state)


def fill(algorithm: PPGA) -> np.ndarray:
    """Fill all cells with elites that nothing can exceed; their solutions (cells, d)."""
    cells = np.arange(algorithm.elites.cells, dtype=np.int32)
    first = {name: values[:1] for name, values in algorithm.elites.state().items()}
    full = {name: np.repeat(values, len(cells), axis=0) for name, values in first.items()}
    full["solution"] += cells[:, None] * np.float32(1e-3)
    algorithm.elites.load_state(full | {"index": cells, "objective": np.full(len(cells), 101, np.float32)})
    return full["solution"]


# Algorithm 1.


def test_the_file_of_the_algorithm_is_one_page() -> None:
    assert len(Path(inspect.getfile(algorithm_1)).read_text().splitlines()) <= 150


@pytest.mark.parametrize("algorithm", ["ppga", "td3ga"])
@pytest.mark.parametrize("task", ["halfcheetah", "walker2d", "humanoid", "ant"])
def test_the_preset_paper_has_no_extensions(task: str, algorithm: str) -> None:
    config: Any = ppga.preset("paper", task, algorithm)[0]
    for extension in ("objective", "phases", "legs", "noise", "confirm"):
        assert getattr(config, extension, None) is None, extension


def test_without_extensions_only_the_rule_of_the_paper_restarts() -> None:
    algorithm = started(ppga.preset("paper", "sphere")[0].replace(branches=4))  # type: ignore[arg-type]
    assert type(algorithm.rule) is RestartRule
    assert algorithm.confirmation is None
    assert isinstance(started(replace(CONFIG, legs=LEGS)).rule, LegSchedule)


def cma_maega(iterations: int, seed: int) -> GridArchive:
    """Archive of pyribs' own algorithm on the same problem, with as many branches."""
    problem = Sphere()
    settings = {
        "solution_dim": problem.solution_size,
        "dims": problem.archive_shape,
        "ranges": problem.measure_ranges,
    }
    soft = GridArchive(learning_rate=0.1, threshold_min=0.0, **settings)  # type: ignore[arg-type]
    result = GridArchive(**settings)  # type: ignore[arg-type]
    emitter = GradientArborescenceEmitter(
        soft, x0=np.zeros(problem.solution_size), sigma0=10.0, lr=1.0, grad_opt="gradient_ascent",
        ranker="imp", selection_rule="mu", restart_rule="basic", batch_size=CONFIG.branches, seed=seed,
    )  # fmt: skip
    scheduler = Scheduler(soft, [emitter], result_archive=result)
    for _ in range(iterations):
        (point,) = scheduler.ask_dqd()
        scores = evaluate(point[None])
        _, gradients, _ = problem.jacobian(point.astype(np.float32), None, 1)  # type: ignore[arg-type]
        scheduler.tell_dqd(scores.objective, scores.measures, np.array(gradients)[None])
        scores = evaluate(scheduler.ask())
        scheduler.tell(scores.objective, scores.measures)
    return result


@pytest.mark.parametrize("seed", [0, 1])
def test_with_known_gradients_it_is_as_good_as_cma_maega(seed: int) -> None:
    """In a long run; in a short one, at a much smaller alpha, it covers less: xNES' steps get smaller."""
    iterations = 200
    reference = cma_maega(iterations, seed)
    archive = ppga.train("sphere", replace(CONFIG, seed=seed), budget=Budget(iterations=iterations)).archive
    assert reference.stats.coverage > 0.5
    assert archive.coverage >= 0.98 * reference.stats.coverage
    assert archive.qd_score >= 0.98 * reference.stats.qd_score


def test_branches_lie_along_the_unit_gradients() -> None:
    algorithm = started()
    theta, rows = search_point(algorithm), unit_gradients(algorithm)
    algorithm.step()
    solutions = to_archive(algorithm).elites["solution"]
    assert len(solutions) > 5
    for solution in solutions:
        coefficients, *_ = np.linalg.lstsq(rows.T, solution - theta, rcond=None)
        np.testing.assert_allclose(coefficients @ rows, solution - theta, atol=1e-3)


def test_the_strategy_ranks_branches_by_improvement_of_the_archive() -> None:
    """The iteration repeated by hand: same samples, ranked by objective minus the threshold before."""
    algorithm, copy = started(), started()
    rows, theta = unit_gradients(copy), search_point(copy)[None]
    coefficients = copy.strategy.ask()
    scores = evaluate(theta)
    copy.soft.add(theta, scores.objective, scores.measures)
    branches = (theta + coefficients @ rows).astype(np.float32)
    scores = evaluate(branches)
    added = copy.soft.add(branches, scores.objective, scores.measures)
    copy.strategy.tell(np.argsort(-added.improvement, kind="stable"), None)
    record = algorithm.step()
    np.testing.assert_allclose(algorithm.strategy.mean, copy.strategy.mean, rtol=1e-4)
    np.testing.assert_allclose(record["strategy_scale"], copy.strategy.scale, rtol=1e-4)


def test_a_search_policy_that_is_stuck_restarts_at_an_elite() -> None:
    algorithm = started()
    algorithm.step()
    solutions = fill(algorithm)
    cells = np.arange(len(solutions), dtype=np.int32)
    algorithm.soft.load_state({"index": cells, "threshold": np.full(len(cells), 101, np.float32)})
    record = algorithm.step()
    assert record["restarts"] == record["restarted"] == 1
    assert record["soft_entries"] == 0
    assert algorithm.strategy.scale == CONFIG.strategy.sigma0
    assert not algorithm.strategy.mean.any()
    assert np.abs(solutions - search_point(algorithm)).max(axis=1).min() < 1e-6


def test_means_at_the_start_and_after_a_restart() -> None:
    random_mean = CONFIG.replace(**{"strategy.mean": "random"})
    assert not started().strategy.mean.any()
    means = np.array([started(replace(random_mean, seed=seed)).strategy.mean for seed in range(30)])
    reward, measures = means[:, 0], means[:, 1:]
    assert reward.min() >= 0
    assert 1 < reward.max() <= 2
    assert -2 <= measures.min() < -1
    assert 1 < measures.max() <= 2
    algorithm = started(random_mean)
    first = algorithm.strategy.mean
    algorithm.iteration = 5
    algorithm.reset_strategy("mean")
    assert (algorithm.strategy.mean != first).all()


def test_a_state_consists_of_arrays_and_resumes_exactly() -> None:
    config = replace(CONFIG, legs=LEGS, phases=phases(2))
    algorithm, other = started(config), started(replace(config, seed=1))
    for _ in range(5):
        algorithm.step()
    state = {name: values.copy() for name, values in algorithm.state().items()}
    assert all(values.dtype != object for values in state.values())
    expected = [algorithm.step() for _ in range(5)]
    other.config = config  # with the seed of the first one
    other.load_state(state)
    assert [other.step() for _ in range(5)] == expected


# Walks: the objective, and phases that follow the reward.


@dataclass(frozen=True)
class Recorded(Sphere):
    """A sphere that records the arguments of walks: weights and number of updates."""

    walks: Any = None

    def __hash__(self) -> int:
        return hash(Sphere)

    def walk(self, state: Any, weights: Any, key: Any, updates: int, scaled: bool) -> Any:
        self.walks.append((weights.tolist(), updates))
        return super().walk(state, weights, key, updates, scaled)


def walk(config: PPGAConfig, mean: list[float], iteration: int = 1) -> tuple[list[float], int]:
    """Weights and number of updates of a walk in an iteration, for a mean of the coefficients."""
    walks: list[Any] = []
    algorithm = started(config, Recorded(walks=walks))
    algorithm.iteration, algorithm.strategy.mean = iteration, np.array(mean)
    algorithm.step_search_policy(np.zeros((1, 20), np.float32))
    np.testing.assert_array_equal(algorithm.strategy.mean, mean)
    ((weights, updates),) = walks
    return weights, updates


def test_weights_of_the_walk() -> None:
    assert walk(CONFIG, [0, 0, 0]) == ([1, 0, 0], 5)
    assert walk(CONFIG, [-1, 0.5, 2]) == ([-1, 0.5, 2], 5)
    clipped = replace(CONFIG, objective=ObjectiveConfig(clip_reward=True))
    assert walk(clipped, [-1, 0.5, 2]) == ([0, 0.5, 2], 5)
    assert walk(clipped, [-1, 0, 0]) == ([1, 0, 0], 5)
    reward_first = replace(CONFIG, phases=phases(3))
    assert walk(reward_first, [0.1, 0.5, 2], iteration=3) == ([1, 0, 0], 7)
    assert walk(reward_first, [0.1, 0.5, 2], iteration=4) == ([0.1, 0.5, 2], 5)


def test_walks_follow_the_reward_first_and_then_at_least_by_its_share() -> None:
    config = replace(CONFIG, phases=phases(2), objective=ObjectiveConfig(min_reward_share=0.5))
    mean = [-1.0, 3.0, -4.0]
    assert walk(config, mean, iteration=1) == ([1, 0, 0], 7)
    assert walk(config, mean, iteration=2) == ([1, 0, 0], 7)
    assert walk(config, mean, iteration=3) == ([2.5, 3, -4], 5)


def test_the_strategy_is_reset_after_the_first_reward_phase() -> None:
    algorithm = started(replace(CONFIG, phases=phases(3)))
    scales = [algorithm.step()["strategy_scale"] for _ in range(3)]
    assert scales[-1] != CONFIG.strategy.sigma0
    assert algorithm.strategy.scale == CONFIG.strategy.sigma0
    assert not algorithm.strategy.mean.any()
    assert algorithm.restarts == 0, "the search policy stays where it is"


def test_recombination_moves_the_search_point_to_the_mean_of_the_best_branches() -> None:
    algorithm = started(replace(CONFIG, step="recombination"))
    algorithm.iteration = 1
    branches = np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32)
    state, _ = algorithm.step_search_policy(branches)
    np.testing.assert_allclose(algorithm.problem.solution(state), recombined_mean(branches))


# Legs.


def test_a_leg_ends_after_its_iterations_and_the_next_one_starts_at_an_elite() -> None:
    legs = replace(LEGS, elite="sparse")
    algorithm = started(replace(CONFIG, legs=legs, phases=phases(2)))
    assert [algorithm.step()["restarted"] for _ in range(9)] == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    algorithm.iteration += 1
    algorithm.restart()
    elites = algorithm.elites.elites()["solution"]
    assert (elites == search_point(algorithm)).all(axis=1).any()


def test_every_other_leg_starts_at_the_best_elite_and_follows_the_reward() -> None:
    """Legs of three iterations, after two iterations for the reward."""
    walks: list[Any] = []
    config = replace(CONFIG, legs=LEGS, phases=phases(2, every=2))
    algorithm = started(config, Recorded(walks=walks))
    for iteration in range(1, 15):
        algorithm.step()
        leg = max(0, iteration - 2) // 3  # number of the next iteration's leg, from 0
        assert algorithm.restarts == leg
        assert algorithm.rule.reward_only(iteration + 1) == (iteration < 2 or leg % 2 == 1)
        if iteration == 2 + 3 * leg and leg % 2:
            best = algorithm.elites.best()
            assert best["objective"] == algorithm.elites.metrics()["best"]
            np.testing.assert_array_equal(search_point(algorithm), best["solution"])
    for number, (weights, updates) in enumerate(walks, start=1):
        reward_only = number <= 2 or (number - 3) // 3 % 2 == 1
        assert (weights == [1, 0, 0]) == reward_only
        assert updates == (7 if reward_only else CONFIG.walk_updates)


def test_the_first_leg_and_legs_for_the_reward_have_their_own_lengths() -> None:
    legs = replace(LEGS, first_iterations=5)
    algorithm = started(replace(CONFIG, legs=legs, phases=phases(0, every=3, iterations=2)))
    reward_only, restarts = [], []
    for iteration in range(1, 18):
        reward_only.append(algorithm.rule.reward_only(iteration))
        restarts.append(algorithm.restarts)
        algorithm.step()
    assert restarts == [0] * 5 + [1] * 2 + [2] * 3 + [3] * 3 + [4] * 2 + [5] * 2
    assert reward_only == [number in (1, 4) for number in restarts]


def test_a_search_policy_without_new_elites_is_restarted_when_patience_ends() -> None:
    patient = LegConfig(iterations=0, first_iterations=0, patience=3, elite="random")
    algorithm = started(replace(CONFIG, legs=patient))
    algorithm.step()
    fill(algorithm)  # branches still enter the soft archive
    assert [algorithm.step()["restarted"] for _ in range(7)] == [0, 0, 1, 0, 0, 1, 0]


# Confirmation.


class Lucky(Sphere):
    """A sphere whose first evaluations are wrong at random; evaluations over five episodes are right."""

    def evaluate(
        self, state: Any, solutions: Any, key: Any, episodes: int, *args: Any, **options: Any
    ) -> Evaluation:
        right = super().evaluate(state, solutions, key, episodes, *args, **options)
        if episodes == 5:
            return right
        assert episodes == CONFIG.evaluation.episodes
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        wrong = right.objective + rng.normal(scale=20.0, size=right.objective.shape)
        moved = right.measures + rng.normal(scale=5.0, size=right.measures.shape)  # ranges: +-51
        return replace(right, objective=wrong.astype(np.float32), measures=moved.astype(np.float32))


def confirming(max_measure_std: float = 0.0) -> PPGAConfig:
    return replace(CONFIG, confirm=ConfirmationConfig(5, max_measure_std, recheck=0))


@pytest.mark.parametrize("confirm", [False, True])
def test_confirmed_elites_have_their_true_scores(confirm: bool) -> None:
    algorithm = started(confirming() if confirm else CONFIG, Lucky())
    for _ in range(4):
        record = algorithm.step()
    elites = algorithm.elites.elites()
    true = evaluate(elites["solution"])
    assert (np.abs(true.objective - elites["objective"]).max() < 1e-4) == confirm
    if confirm:
        assert algorithm.elites.index_of(true.measures).tolist() == elites["index"].tolist()
        first = 4 * (1 + CONFIG.branches)
        assert first < record["evaluations"] < 2 * first, "only candidates that would enter are confirmed"


class Unsteady(Sphere):
    """A sphere where the measures of points with a positive first coordinate vary between episodes."""

    def evaluate(self, state: Any, solutions: Any, *args: Any, **options: Any) -> Evaluation:
        scores = super().evaluate(state, solutions, *args, **options)
        std = np.where(solutions[:, :1] > 0, 20.0, 1.0) * np.ones((1, 2))
        return replace(scores, measures_std=std)


@pytest.mark.parametrize("max_measure_std", [0.0, 0.1])
def test_candidates_whose_measures_vary_too_much_are_rejected(max_measure_std: float) -> None:
    algorithm = started(confirming(max_measure_std), Unsteady())
    for _ in range(4):
        algorithm.step()
    solutions = algorithm.elites.elites()["solution"]
    assert len(solutions) > 3
    assert (solutions[:, 0] > 0).any() == (max_measure_std == 0)
