"""Confirmation of candidates and re-evaluation of elites, against slow versions, without simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppga import InputError
from ppga.archives import ArchiveConfig, EliteArchive
from ppga.limits import MOST_POLICIES
from ppga.problems import Evaluation
from ppga.search import Confirmation, ConfirmationConfig, EvaluationConfig, StochasticEvaluationConfig
from ppga.search.evaluation import EPISODES_AT_ONCE
from ppga.storage import NumpyArray

CELLS, RANGE = 12, (-12.0, 12.0)
KEY = jax.random.key(0)


@dataclass
class Call:
    """An evaluation of solutions (n, 4): how many episodes, which of them (n,), and with which key."""

    solutions: NumpyArray
    episodes: int
    active: NumpyArray
    key: Any


@dataclass
class Table:
    """A problem whose solutions are their scores: objective, measure, std of the measure; NaN if inactive.

    Attributes:
        noise: standard deviation of an episode's objective.
        calls: all evaluations so far.
    """

    noise: float = 0.0
    calls: list[Call] = field(default_factory=list)
    measure_names: tuple[str, ...] = ("place",)
    measure_ranges: tuple[tuple[float, float], ...] = (RANGE,)

    def evaluate_elites(
        self, elites: Mapping[str, NumpyArray], key: Any, episodes: int, active: NumpyArray
    ) -> Evaluation:
        solutions = elites["solution"]
        self.calls.append(Call(solutions, episodes, active, key))
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        draws = rng.normal(scale=self.noise / np.sqrt(episodes), size=len(solutions))
        scores = np.where(active[:, None], solutions, np.nan).astype(np.float32)
        count = int(active.sum())
        objective = (scores[:, 0] + draws).astype(np.float32)
        return evaluation_of(objective, scores[:, 1:2], scores[:, 2:], count, episodes * count)


def evaluation_of(
    objective: Any, measures: Any, measures_std: Any, policies: int, episodes: int, survival: Any = 1.0
) -> Evaluation:
    """Scores of policies whose returns do not vary, in episodes of 7 steps."""
    n = len(objective)
    return Evaluation(
        objective=np.asarray(objective, np.float32),
        objective_std=np.zeros(n, np.float32),
        measures=measures,
        measures_std=measures_std,
        length=np.full(n, 7, np.float32),
        survival=np.broadcast_to(np.float32(survival), n),
        env_steps=7 * policies,
        policies=policies,
        episodes=episodes,
    )


def confirmation(
    problem: Table, first_episodes: int = 1, elites: EliteArchive | None = None, **changes: Any
) -> tuple[Confirmation, list[Evaluation]]:
    """A confirmation, and the evaluations that it counts."""
    counted: list[Evaluation] = []
    config = replace(ConfirmationConfig(), **changes)
    any_problem: Any = problem  # not all of the protocol
    elites = new_archive() if elites is None else elites
    return Confirmation(config, first_episodes, any_problem, elites, counted.append), counted


def new_archive() -> EliteArchive:
    return EliteArchive(3, (CELLS,), (RANGE,), {}, 0.0, ArchiveConfig())


def first_evaluation(objective: Any, place: Any, survival: Any = 1.0) -> Evaluation:
    n = len(objective)
    measures = np.asarray(place, np.float32)[:, None]
    return evaluation_of(objective, measures, np.zeros((n, 1), np.float32), n, n, survival)


SCORE = st.one_of(st.integers(-3, 3).map(float), st.just(float("nan")))
CANDIDATE = st.tuples(
    SCORE,  # objective of the first evaluation
    st.integers(0, 11).map(float),  # measure of the first evaluation
    st.integers(-3, 3).map(float),  # objective of the second one
    st.integers(0, 11).map(float),  # measure
    st.sampled_from([0.0, 1.0, 2.0, 3.0]),  # std of the measure
)


@given(
    st.lists(CANDIDATE, min_size=1, max_size=12),
    st.lists(st.integers(-3, 3), max_size=6),
    st.sampled_from([1, 2, 30, 64, 200]),
    st.sampled_from([1, 3]),
    st.sampled_from([0.0, 0.1]),
)
def test_candidates_that_would_enter_have_the_scores_of_their_second_evaluation(
    candidates: list[tuple[float, ...]], archived: list[int], episodes: int, first: int, limit: float
) -> None:
    """A slow version: one candidate after the other."""
    problem, elites, n = Table(), new_archive(), len(candidates)
    for cell, objective in enumerate(archived):
        elites.add(np.zeros((1, 3)), np.array([objective], float), np.array([[2.0 * cell + 1]]))
    rows = np.array(candidates, np.float32)
    changes: dict[str, Any] = {"episodes": episodes, "max_measure_std": limit, "recheck": 0}
    confirm, counted = confirmation(problem, first, elites, **changes)
    enters = [
        np.isfinite(objective)
        and all(objective > old for old in archived[int(place) // 2 : int(place) // 2 + 1])
        and all(
            not objective < other and (other != objective or number <= rank)
            for rank, (other, elsewhere, *_) in enumerate(candidates)
            if int(elsewhere) // 2 == int(place) // 2
        )
        for number, (objective, place, *_) in enumerate(candidates)
    ]
    solutions = rows[:, 2:]
    scores = first_evaluation(rows[:, 0], rows[:, 1])
    again = confirm.confirm({"solution": solutions}, scores, KEY)
    objectives, measures = again["objective"], again["measures"]
    for number, (_, _, second, place, std) in enumerate(candidates):
        confirmed = enters[number] and (not limit or std / 24 <= limit)
        np.testing.assert_equal(objectives[number], second if confirmed else np.nan)
        np.testing.assert_equal(measures[number], [place if enters[number] else np.nan])
    # every candidate once, in batches of one size
    evaluated = np.concatenate([np.zeros((0, 3)), *(call.solutions[call.active] for call in problem.calls)])
    order = np.lexsort(evaluated.T), np.lexsort(solutions[enters].T)
    np.testing.assert_array_equal(evaluated[order[0]], solutions[enters][order[1]])
    assert all(call.episodes == episodes for call in problem.calls)
    size = min(n, max(1, max(n * first, EPISODES_AT_ONCE) // episodes))
    assert [len(call.solutions) for call in problem.calls] == [size] * -(-sum(enters) // size)
    assert sum(report.policies for report in counted) == sum(enters)
    assert sum(report.episodes for report in counted) == episodes * sum(enters)


def test_batches_have_random_keys_of_their_own_and_no_candidate_twice() -> None:
    problem, n = Table(), 5
    confirm, counted = confirmation(problem, episodes=EPISODES_AT_ONCE // 2, recheck=0)
    places = np.array([1.0, 3.0, 5.0, 7.0, 9.0], np.float32)
    solutions = np.stack([np.ones(n), places, np.zeros(n)], axis=1)
    confirm.confirm({"solution": solutions}, first_evaluation(np.ones(n), places), KEY)
    keys = {tuple(np.asarray(jax.random.key_data(call.key)).tolist()) for call in problem.calls}
    assert len(problem.calls) == len(keys) == 3
    assert [report.policies for report in counted] == [2, 2, 1]
    assert tuple(np.asarray(jax.random.key_data(KEY)).tolist()) not in keys


def test_confirmation_removes_most_of_the_luck() -> None:
    """The best of 100 standard normal samples is 2.5 on average, and that of means of 16 a quarter of it."""
    best: dict[str, list[float]] = {"first": [], "second": []}
    for seed in range(20):
        for name in best:
            problem, elites = Table(noise=1.0), new_archive()
            confirm, _ = confirmation(problem, 1, elites, episodes=16, max_measure_std=0.0, recheck=0)
            solutions = np.tile([0.0, 1.0, 0.0], (10, 1)).astype(np.float32)
            for key in jax.random.split(jax.random.key(seed), 10):
                first_key, second_key = jax.random.split(key)
                candidates = {"solution": solutions}
                first = problem.evaluate_elites(candidates, first_key, 1, np.ones(10, bool))
                objective, measures = first.objective, first.measures
                if name == "second":
                    second = confirm.confirm(candidates, first, second_key)
                    objective, measures = second["objective"], second["measures"]
                elites.add(solutions, objective, measures)
            best[name].append(float(elites.best()["objective"]))
    assert np.mean(best["first"]) == pytest.approx(2.5, abs=0.3)
    assert 0 < np.mean(best["second"]) < 2.5 / 4


def recheckable(episodes: list[int]) -> EliteArchive:
    """An archive with elites in the first cells, evaluated in that many episodes with an objective of 1."""
    elites, n = new_archive(), len(episodes)
    places = 2 * np.arange(n, dtype=np.float32) + 1
    solutions = np.stack([np.zeros(n), places, np.zeros(n)], axis=1).astype(np.float32)
    elites.add(solutions, np.ones(n, np.float32), places[:, None], np.array(episodes))
    return elites


def reevaluate(confirm: Confirmation) -> int:
    """Re-evaluate elites with a candidate that does not enter; return how many left their cell."""
    candidate = {"solution": np.array([[9.0, 1.0, 0.0]], np.float32)}
    before = confirm.moved
    scores = confirm.confirm(candidate, first_evaluation([np.nan], [1.0]), KEY)
    assert np.isnan(scores["objective"]).all()
    return confirm.moved - before


def test_the_elites_with_the_fewest_episodes_are_reevaluated() -> None:
    problem, elites = Table(), recheckable([9, 2, 5, 3])
    confirm, counted = confirmation(problem, 1, elites, episodes=4, recheck=2)
    assert reevaluate(confirm) == 0
    (call,) = problem.calls
    assert call.solutions[call.active][:, 1].tolist() == [3.0, 7.0]
    # true objectives are 0: the mean of all episodes
    assert elites.objectives.tolist() == pytest.approx([1.0, 2 / 6, 1.0, 3 / 7])
    assert elites.episodes[elites.occupied].tolist() == [9, 6, 5, 7]
    (report,) = counted
    assert (report.policies, report.episodes, report.env_steps) == (2, 8, 14)
    reevaluate(confirm)
    assert elites.episodes[elites.occupied].tolist() == [9, 10, 9, 7]


def test_candidates_and_elites_share_batches() -> None:
    """Three candidates and two elites, two at a time; the elites' scores do not become the candidates'."""
    problem, elites = Table(), recheckable([2, 3])
    confirm, counted = confirmation(problem, 1, elites, episodes=EPISODES_AT_ONCE // 2, recheck=2)
    places = np.array([7.0, 9.0, 11.0], np.float32)
    solutions = np.stack([np.full(3, 5.0), places, np.zeros(3)], axis=1).astype(np.float32)
    scores = confirm.confirm({"solution": solutions}, first_evaluation(np.ones(3), places), KEY)
    assert [report.policies for report in counted] == [2, 2, 1]
    assert scores["objective"].tolist() == [5.0, 5.0, 5.0]
    assert scores["measures"][:, 0].tolist() == places.tolist()
    assert elites.episodes[elites.occupied].tolist() == [2 + 64, 3 + 64]
    assert elites.objectives.tolist() == pytest.approx([2 / 66, 3 / 67])
    assert confirm.moved == 0


def test_reevaluated_elites_move_to_the_cell_of_their_mean_measures() -> None:
    problem, elites = Table(), recheckable([2, 2, 2])
    first, second, _ = elites.occupied
    elites.solutions[first, 1] = 13.0  # measured at 1 in two episodes, and now at 13 in two: the mean is 7
    elites.solutions[second, 0] = np.nan  # its new scores are not finite
    confirm, _ = confirmation(problem, 1, elites, episodes=2, recheck=10)
    assert reevaluate(confirm) == 2
    assert elites.occupied.tolist() == [8, 9]
    after = elites.elites()
    np.testing.assert_allclose(after["measures"][:, 0], [5.0, 7.0])
    assert elites.episodes[elites.occupied].tolist() == [4, 4]


def test_candidates_that_fall_are_not_confirmed_and_elites_that_fall_are_removed() -> None:
    elites = EliteArchive(3, (CELLS,), (RANGE,), {}, 0.0, ArchiveConfig(), min_survival=0.75)
    problem = Table()
    confirm, counted = confirmation(problem, 1, elites, episodes=2, recheck=0)
    places = np.array([1.0, 3.0], np.float32)
    solutions = np.stack([np.ones(2), places, np.zeros(2)], axis=1).astype(np.float32)
    first = first_evaluation(np.ones(2), places, survival=[1.0, 0.5])
    scores = confirm.confirm({"solution": solutions}, first, KEY)
    assert counted[0].policies == 1
    assert np.isfinite(scores["objective"]).tolist() == [True, False]
    assert scores["survival"][0] == 1.0


def test_no_elites_need_no_evaluation() -> None:
    for recheck, elites in ((3, new_archive()), (0, recheckable([1]))):
        problem = Table()
        confirm, counted = confirmation(problem, 1, elites, recheck=recheck)
        assert reevaluate(confirm) == 0
        assert not problem.calls
        assert not counted


@pytest.mark.parametrize("episodes", [0, -1, 1.5, True])
def test_bad_numbers_of_episodes(episodes: Any) -> None:
    for section, name in (
        (EvaluationConfig(episodes), "evaluation"),
        (StochasticEvaluationConfig(episodes), "evaluation"),
        (ConfirmationConfig(episodes), "confirm"),
    ):
        with pytest.raises(InputError, match=rf"{name}\.episodes must be an integer of at least 1"):
            section.check()
    EvaluationConfig().check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_measure_std": -0.1}, r"--confirm\.max-measure-std must lie in \[0, inf\]"),
        ({"max_measure_std": np.nan}, r"--confirm\.max-measure-std must lie in"),
        ({"recheck": -1}, r"--confirm\.recheck must be an integer of at least 0"),
        ({"recheck": MOST_POLICIES + 1}, r"--confirm\.recheck must be at most "),
    ],
)
def test_bad_confirmations(changes: dict[str, Any], message: str) -> None:
    ConfirmationConfig().check()
    with pytest.raises(InputError, match=message):
        replace(ConfirmationConfig(), **changes).check()
