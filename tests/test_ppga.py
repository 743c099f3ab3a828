from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from ribs.archives import GridArchive
from ribs.emitters import GradientArborescenceEmitter
from ribs.schedulers import Scheduler

from ppga import ArchiveConfig, Budget, PPGAConfig, SearchConfig
from ppga.algorithms import PPGA
from ppga.algorithms.problem import Judgement
from ppga.algorithms.sphere import BOUND, OPTIMUM, Sphere
from ppga.runs.loop import make_algorithm, to_archive, train

SEARCH = SearchConfig(branches=36, sigma0=10.0, walk_updates=5)
CONFIG = PPGAConfig(search=SEARCH, archive=ArchiveConfig(alpha=0.1, threshold_min=0.0))


def started(config: PPGAConfig = CONFIG) -> PPGA:
    algorithm = make_algorithm("sphere", config)
    assert isinstance(algorithm, PPGA)
    algorithm.start()
    return algorithm


def test_the_sphere_is_what_it_says() -> None:
    problem = Sphere(SEARCH, solution_size=4)
    points = np.array([[OPTIMUM] * 4, [-BOUND] * 4, [1.0, 2.0, 2 * BOUND, -4 * BOUND]], np.float32)
    judged = problem.judge(None, points[None], None)  # type: ignore[arg-type]
    assert judged.objective[:2] == pytest.approx([100.0, 0.0], abs=1e-4)
    np.testing.assert_allclose(judged.measures[2], [3.0, BOUND / 2 - BOUND / 4], rtol=1e-5)
    _, gradients, _ = problem.jacobian(points[:1] + 0.5, None)  # type: ignore[arg-type]
    for axis in range(4):  # central differences
        step = np.zeros(4, np.float32)
        step[axis] = 1e-2
        values = [problem.judge(None, (points[:1] + 0.5 + s)[None], None) for s in (step, -step)]  # type: ignore[arg-type]
        slope = (values[0].objective - values[1].objective) / 2e-2
        np.testing.assert_allclose(gradients[0, 0, axis], slope[0], atol=2e-2)


def cma_maega(iterations: int, seed: int) -> GridArchive:
    """pyribs' own algorithm on the same problem, with as many branches."""
    problem = Sphere(SEARCH)
    settings = {
        "solution_dim": problem.solution_size,
        "dims": problem.archive_shape,
        "ranges": problem.measure_ranges,
    }
    soft = GridArchive(learning_rate=0.1, threshold_min=0.0, **settings)  # type: ignore[arg-type]
    result = GridArchive(**settings)  # type: ignore[arg-type]
    emitter = GradientArborescenceEmitter(
        soft, x0=np.zeros(problem.solution_size), sigma0=10.0, lr=1.0, grad_opt="gradient_ascent",
        ranker="imp", selection_rule="mu", restart_rule="basic", batch_size=SEARCH.branches, seed=seed,
    )  # fmt: skip
    scheduler = Scheduler(soft, [emitter], result_archive=result)
    for _ in range(iterations):
        points = scheduler.ask_dqd()
        judged = problem.judge(None, points[None], None)  # type: ignore[arg-type]
        _, gradients, _ = problem.jacobian(points.astype(np.float32), None)  # type: ignore[arg-type]
        scheduler.tell_dqd(judged.objective, judged.measures, np.array(gradients))
        judged = problem.judge(None, scheduler.ask()[None], None)  # type: ignore[arg-type]
        scheduler.tell(judged.objective, judged.measures)
    return result


@pytest.mark.parametrize("seed", [0, 1])
def test_with_known_gradients_it_does_as_well_as_cma_maega(seed: int) -> None:
    """In the long run; in a short one, at a much smaller alpha, xNES' narrowing steps cost it coverage."""
    iterations = 200
    theirs = cma_maega(iterations, seed)
    ours = train("sphere", replace(CONFIG, seed=seed), budget=Budget(iterations=iterations)).archive
    assert theirs.stats.coverage > 0.5, "the reference has something to show"
    assert ours.coverage >= 0.98 * theirs.stats.coverage
    assert ours.qd_score >= 0.98 * theirs.stats.qd_score


def test_branches_lie_along_the_unit_gradients() -> None:
    algorithm = started()
    theta = algorithm.problem.solutions(algorithm.search)[0]
    _, gradients, _ = algorithm.problem.jacobian(algorithm.search, None)
    rows = gradients[0] / np.linalg.norm(gradients[0], axis=1, keepdims=True)
    algorithm.step()
    solutions = to_archive(algorithm).elites["solution"]
    assert len(solutions) > 5
    for solution in solutions:
        coefficients, *_ = np.linalg.lstsq(rows.T, solution - theta, rcond=None)
        np.testing.assert_allclose(coefficients @ rows, solution - theta, atol=1e-3)


def test_xnes_is_told_who_improved_the_archive_most() -> None:
    """The step repeated by hand: same draws, ranked by objective minus the threshold before."""
    algorithm, copy = started(), started()
    _, gradients, _ = copy.problem.jacobian(copy.search, None)
    rows = gradients[0] / np.linalg.norm(gradients[0], axis=1, keepdims=True)
    theta = copy.problem.solutions(copy.search)
    coefficients = copy.strategies[0].ask()
    itself = copy.problem.judge(None, theta[None], None)
    copy.archives.add(theta, itself.objective, itself.measures)
    branches = (theta + coefficients @ rows).astype(np.float32)
    judged = copy.problem.judge(None, branches[None], None)
    added = copy.archives.add(branches, judged.objective, judged.measures)
    copy.strategies[0].tell(np.argsort(-added.improvement, kind="stable"), None)
    record = algorithm.step()
    np.testing.assert_allclose(algorithm.strategies[0].mean, copy.strategies[0].mean, rtol=1e-4)
    np.testing.assert_allclose(record["xnes_scale"], [copy.strategies[0].scale], rtol=1e-4)


def test_a_search_that_is_stuck_begins_again_at_an_elite() -> None:
    # nothing can exceed 100, so after the first iteration no branch enters
    algorithm = started()
    algorithm.step()
    everywhere = algorithm.archives
    elites = everywhere.state()
    cells = np.arange(everywhere.cells, dtype=np.int32)
    full = {
        "index": cells,
        "solution": np.repeat(elites["soft/solution"][:1], len(cells), axis=0) + cells[:, None] * 1e-3,
        "objective": np.full(len(cells), 101.0, np.float32),
        "measures": np.repeat(elites["soft/measures"][:1], len(cells), axis=0),
        "threshold": np.full(len(cells), 101.0, np.float32),
    }
    everywhere.soft.restore(full)
    everywhere.result.restore(full)
    record = algorithm.step()
    assert record["restarts"] == record["restarted"] == 1
    assert record["soft_new"] == 0
    assert algorithm.strategies[0].scale == SEARCH.sigma0
    assert not algorithm.strategies[0].mean.any()
    theta = algorithm.problem.solutions(algorithm.search)[0]
    assert np.abs(full["solution"] - theta).max(axis=1).min() < 1e-6


def test_means_at_start_and_restart() -> None:
    zero, random = started(), started(replace(CONFIG, search=replace(SEARCH, mean="random")))
    assert not zero.strategies[0].mean.any()
    means = []
    for seed in range(30):
        config = replace(CONFIG, seed=seed, search=replace(SEARCH, mean="random"))
        means.append(started(config).strategies[0].mean)
    reward, measures = np.array(means)[:, 0], np.array(means)[:, 1:]
    assert reward.min() >= 0
    assert 1 < reward.max() <= 2
    assert -2 <= measures.min() < -1
    assert 1 < measures.max() <= 2
    first = random.strategies[0].mean
    random.iteration = 5
    random.restart_strategy(0, "mean")
    assert (random.strategies[0].mean != first).all()


def test_weights_of_the_walk() -> None:
    algorithm = started()
    algorithm.iteration = 1
    np.testing.assert_array_equal(algorithm.walk_weights(np.zeros(3)), [1, 0, 0])
    np.testing.assert_array_equal(algorithm.walk_weights(np.array([-1.0, 0.5, 2.0])), [-1.0, 0.5, 2.0])
    clipping = started(replace(CONFIG, search=replace(SEARCH, clip_objective=True)))
    clipping.iteration = 1
    np.testing.assert_array_equal(clipping.walk_weights(np.array([-1.0, 0.5, 2.0])), [0, 0.5, 2.0])
    np.testing.assert_array_equal(clipping.walk_weights(np.array([-1.0, 0.0, 0.0])), [1, 0, 0])
    patient = started(replace(CONFIG, search=replace(SEARCH, reward_first=3)))
    for patient.iteration, expected in ((3, [1, 0, 0]), (4, [0.1, 0.5, 2.0])):
        np.testing.assert_array_equal(patient.walk_weights(np.array([0.1, 0.5, 2.0])), expected)


def test_every_other_leg_begins_at_the_best_elite_and_follows_the_reward() -> None:
    """Legs of three iterations after two for the reward; two search points that take turns."""
    search = replace(SEARCH, reward_first=2, leg=3, reward_every=2, emitters=2, first_updates=7)
    algorithm = started(replace(CONFIG, search=search))
    mean = np.array([0.1, 0.5, 2.0])
    for iteration in range(1, 15):
        assert algorithm.step()["iteration"] == iteration
        leg = max(0, iteration - 2) // 3  # the leg that comes next
        assert algorithm.restarts == 2 * leg
        # of the two restarts at the end of each leg the first is an odd one: legs for the reward are 2, 4, 6
        np.testing.assert_array_equal(algorithm.rewarding, [leg > 0, False])
        if iteration == 2 + 3 * leg and leg:
            best = algorithm.archives.best_elite()
            assert best["objective"] == algorithm.archives.figures()["best"]
            np.testing.assert_array_equal(algorithm.problem.solutions(algorithm.search)[0], best["solution"])
        if iteration >= 5:
            np.testing.assert_array_equal(algorithm.walk_weights(mean, 1), mean)
            np.testing.assert_array_equal(algorithm.walk_weights(mean, 0), [1, 0, 0])
            assert algorithm.walk_updates() == SEARCH.walk_updates, "one of them is not for the reward"
    algorithm.rewarding[:] = True
    assert algorithm.walk_updates() == 7


def test_the_first_leg_and_those_for_the_reward_may_be_of_other_lengths() -> None:
    legs = replace(SEARCH, first_leg=5, leg=3, reward_every=3, reward_leg=2)
    algorithm = started(replace(CONFIG, search=legs))
    rewarding, restarts = [], []
    for _ in range(17):
        rewarding.append(bool(algorithm.rewarding[0]))
        restarts.append(algorithm.restarts)
        algorithm.step()
    assert restarts == [0] * 5 + [1] * 2 + [2] * 3 + [3] * 3 + [4] * 2 + [5] * 2
    assert rewarding == [number in (1, 4) for number in restarts]


def test_several_search_points_share_the_archive_and_none_else() -> None:
    config = replace(CONFIG, search=replace(SEARCH, emitters=3, branches=12))
    algorithm = started(config)
    for _ in range(20):
        record = algorithm.step()
    assert record["evaluations"] == record["episodes"] == 20 * 3 * 13
    assert len(record["search_objective"]) == len(record["xnes_scale"]) == 3
    assert len(np.unique(np.round(record["search_measures"], 3), axis=0)) == 3, "they went apart"
    assert record["coverage"] > 0.3


def test_a_state_is_plain_arrays_and_goes_on_exactly() -> None:
    config = replace(CONFIG, search=replace(SEARCH, emitters=2))
    one, other = started(config), started(replace(config, seed=1))
    for _ in range(5):
        one.step()
    state = {name: values.copy() for name, values in one.state().items()}
    assert all(values.dtype != object for values in state.values())
    later = [one.step() for _ in range(5)]
    other.seed = 0
    other.load_state(state)
    assert [other.step() for _ in range(5)] == later


def test_a_search_policy_that_brings_nothing_new_is_restarted_after_some_patience() -> None:
    algorithm = started(replace(CONFIG, search=replace(SEARCH, patience=3)))
    algorithm.step()
    everywhere = algorithm.archives
    elites = everywhere.state()
    cells = np.arange(everywhere.cells, dtype=np.int32)
    everywhere.result.restore(
        {
            "index": cells,
            "solution": np.repeat(elites["result/solution"][:1], len(cells), axis=0),
            "objective": np.full(len(cells), 101.0, np.float32),  # nothing can exceed 100
            "measures": np.repeat(elites["result/measures"][:1], len(cells), axis=0),
            "threshold": np.full(len(cells), 101.0, np.float32),
        }
    )
    assert [algorithm.step()["restarted"] for _ in range(7)] == [0, 0, 1, 0, 0, 1, 0]


class Lucky(Sphere):
    """A sphere whose first judgement is wrong by chance; a second look is right."""

    def judge(
        self, state: Any, solutions: Any, key: Any, episodes: Any = None, playing: Any = None
    ) -> Judgement:
        right = super().judge(state, solutions, key, episodes, playing)
        if episodes is not None:
            assert episodes == 5
            return right
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        wrong = right.objective + rng.normal(scale=20.0, size=right.objective.shape)
        moved = right.measures + rng.normal(scale=5.0, size=right.measures.shape)  # ranges: +-51
        return replace(right, objective=wrong.astype(np.float32), measures=moved.astype(np.float32))


@pytest.mark.parametrize("emitters", [1, 3])
def test_confirmed_elites_are_what_they_claim(emitters: int) -> None:
    for confirm in (0, 5):
        search = replace(SEARCH, confirm=confirm, emitters=emitters)
        algorithm = started(replace(CONFIG, search=search))
        algorithm.problem = Lucky(search)
        for _ in range(4):
            record = algorithm.step()
        elites = algorithm.archives.state()
        true = algorithm.problem.judge(None, elites["result/solution"][None], None, 5)
        claimed = np.abs(true.objective - elites["result/objective"]).max()
        assert (claimed < 1e-4) == bool(confirm)
        if confirm:
            assert (
                algorithm.archives.result.index_of(true.measures).tolist() == elites["result/index"].tolist()
            )
            judged_once = 4 * emitters * (1 + search.branches)
            assert judged_once < record["evaluations"] < 2 * judged_once, (
                "only those who promise are looked at"
            )


def test_the_walk_follows_the_reward_first_and_never_loses_its_share_of_it() -> None:
    search = replace(SEARCH, reward_first=2, first_updates=7, walk_updates=3, reward_share=0.5)
    algorithm = started(replace(CONFIG, search=search))
    mean = np.array([-1.0, 3.0, -4.0])
    for iteration, weights, updates in (
        (1, [1.0, 0.0, 0.0], 7),
        (2, [1.0, 0.0, 0.0], 7),
        (3, [2.5, 3.0, -4.0], 3),
    ):
        algorithm.iteration = iteration
        assert algorithm.walk_weights(mean).tolist() == weights
        assert algorithm.walk_updates() == updates
    np.testing.assert_array_equal(mean, [-1.0, 3.0, -4.0])
    plain = started(replace(CONFIG, search=replace(SEARCH, reward_first=2, walk_updates=3)))
    plain.iteration = 1
    assert plain.walk_updates() == 3
    plain.iteration = 3
    assert plain.walk_weights(mean).tolist() == mean.tolist()


class Unsteady(Sphere):
    """A sphere where points with a positive first coordinate are judged otherwise every time."""

    def judge(self, *args: Any) -> Judgement:
        judged = super().judge(*args)
        wild = args[1].reshape(-1, self.solution_size)[:, :1] > 0
        return replace(judged, spread=np.where(wild, 20.0, 1.0) * np.ones((1, 2)))


def test_what_spreads_too_far_belongs_in_no_cell() -> None:
    for steady in (0.0, 0.1):
        search = replace(SEARCH, confirm=5, steady=steady)
        algorithm = started(replace(CONFIG, search=search))
        algorithm.problem = Unsteady(search)
        for _ in range(4):
            algorithm.step()
        solutions = algorithm.archives.state()["result/solution"]
        assert len(solutions) > 3
        assert (solutions[:, 0] > 0).any() == (steady == 0)


def test_a_leg_ends_after_its_iterations_and_begins_at_an_elite() -> None:
    algorithm = started(replace(CONFIG, search=replace(SEARCH, leg=3, reward_first=2, restart_at="sparse")))
    assert [algorithm.step()["restarted"] for _ in range(9)] == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    algorithm.iteration += 1
    algorithm.restart(0)
    elites = algorithm.archives.state()["result/solution"]
    assert (elites == algorithm.problem.solutions(algorithm.search)[0]).all(axis=1).any()


def test_xnes_begins_again_when_the_reward_no_longer_leads_alone() -> None:
    algorithm = started(replace(CONFIG, search=replace(SEARCH, reward_first=3)))
    scales = [algorithm.step()["xnes_scale"][0] for _ in range(3)]
    assert scales[-1] != SEARCH.sigma0
    assert algorithm.strategies[0].scale == SEARCH.sigma0
    assert not algorithm.strategies[0].mean.any()
    assert algorithm.restarts == 0, "the search policy stays where it is"
