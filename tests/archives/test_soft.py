"""The soft archive: thresholds as in CMA-MAE, batch by batch."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ppga.archives import EliteArchive, RibsSoftArchive, SoftAddition, SoftArchive, SoftArchiveConfig
from ppga.errors import InputError

RANGES = ((0.0, 1.0), (0.0, 1.0))


def elites(config: SoftArchiveConfig) -> EliteArchive:
    return EliteArchive(1, (2, 2), RANGES, {}, -5.0, config)


def soft_archive(alpha: float, threshold_min: float | None, kind: Any = SoftArchive) -> Any:
    config = SoftArchiveConfig(alpha=alpha, threshold_min=threshold_min)
    return kind(elites(config), config)


def add(soft: SoftArchive, *objectives: float, cell: tuple[float, float] = (0.2, 0.2)) -> SoftAddition:
    """Add solutions 0, 1, ... with these objectives to one cell."""
    n = len(objectives)
    return soft.add(
        np.arange(n, dtype=np.float32)[:, None], np.array(objectives, np.float32), np.array([cell] * n)
    )


def threshold(soft: SoftArchive) -> float:
    return float(soft.state()["threshold"][0])


@pytest.mark.parametrize(
    ("alpha", "first", "second"),
    [
        (0.0, 1.0, 1.0),  # never moves from threshold_min
        (0.1, 1.0 + 0.1 * (3.0 - 1.0), 1.2 + 0.1 * (2.0 - 1.2)),
        (1.0, 3.0, 3.0),  # 2 does not enter: 3 is the threshold
    ],
)
def test_each_entry_moves_the_threshold_by_alpha(alpha: float, first: float, second: float) -> None:
    soft = soft_archive(alpha, 1.0)
    added = add(soft, 3.0)
    assert added.improvement == pytest.approx([3.0 - 1.0]), "above threshold_min, before it moves"
    assert threshold(soft) == pytest.approx(first)
    added = add(soft, 2.0)
    assert added.improvement == pytest.approx([2.0 - first])
    assert list(added.entered) == [first < 2.0]
    assert threshold(soft) == pytest.approx(second)


def test_a_batch_moves_the_threshold_once_by_the_mean_of_its_entries() -> None:
    soft = soft_archive(0.1, 0.0, RibsSoftArchive)
    added = add(soft, 2.0, 4.0, -1.0)
    assert added.improvement == pytest.approx([2.0, 4.0, -1.0]), "all above the threshold before the batch"
    assert list(added.entered) == [True, True, False]
    # two entries with a mean of 3: (1 - 0.1)^2 of the old threshold 0, and the rest of the difference to 3
    assert threshold(soft) == pytest.approx((1 - 0.9**2) * 3.0)
    assert soft.state()["solution"].tolist() == [[1.0]], "the best of the batch is stored"


def test_alpha_one_is_elitist_within_a_batch() -> None:
    soft = soft_archive(1.0, 0.0)
    add(soft, 4.0, 2.0)
    assert threshold(soft) == 4.0, "pyribs' batch rule would give the mean, 3"
    assert not add(soft, 3.5).entered[0]


def test_candidates_below_threshold_min_enter_the_elitist_archive_only() -> None:
    config = SoftArchiveConfig(alpha=0.5, threshold_min=1.0)
    elitist = elites(config)
    soft = RibsSoftArchive(elitist, config)
    elitist.add(np.zeros((1, 1)), np.array([0.5]), np.array([[0.2, 0.2]]))
    added = add(soft, 0.5)
    assert added.improvement == pytest.approx([-0.5])
    assert soft.empty
    assert elitist.metrics()["best"] == 0.5


@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1, max_size=30))
def test_batches_of_one_follow_the_paper(entries: list[tuple[float, int]]) -> None:
    """Algorithm 2, one solution at a time, written out; improvement before the threshold moves."""
    config = SoftArchiveConfig(alpha=0.25, threshold_min=-1.0)
    elitist = elites(config)
    soft = SoftArchive(elitist, config)
    best: dict[int, float] = {}
    thresholds = np.full(4, -1.0)
    for objective, cell in entries:
        place = (0.25 + 0.5 * (cell // 2), 0.25 + 0.5 * (cell % 2))
        elitist.add(np.zeros((1, 1)), np.array([objective], np.float32), np.array([place]))
        added = add(soft, objective, cell=place)
        assert added.improvement[0] == pytest.approx(objective - thresholds[cell], abs=1e-4)
        if objective > thresholds[cell] + 1e-5:
            assert added.entered[0]
            thresholds[cell] = 0.75 * thresholds[cell] + 0.25 * objective
        best[cell] = max(best.get(cell, -np.inf), objective)
    np.testing.assert_allclose(soft.thresholds, thresholds, atol=1e-4)
    metrics = elitist.metrics()
    assert metrics["qd_score"] == pytest.approx(sum(value + 5.0 for value in best.values()), abs=1e-3)
    assert metrics["coverage"] == len(best) / 4
    assert metrics["best"] == pytest.approx(max(best.values()))
    assert metrics["mean"] == pytest.approx(np.mean(list(best.values())), abs=1e-4)


def test_candidates_that_are_not_finite_are_rejected() -> None:
    config = SoftArchiveConfig(alpha=0.5, threshold_min=0.0)
    elitist = elites(config)
    soft = SoftArchive(elitist, config)
    objective, places = np.array([np.nan, 1.0, np.inf], np.float32), np.full((3, 2), 0.2)
    entered = elitist.add(np.zeros((3, 1)), objective, places)
    assert entered.tolist() == [False, True, False]
    added = soft.add(np.zeros((3, 1)), objective, places)
    assert np.isnan(added.improvement).tolist() == [True, False, True]
    assert added.improvement[1] == 1.0
    assert added.entered.tolist() == [False, True, False]
    assert elitist.metrics()["best"] == 1.0
    nowhere = np.zeros((1, 1)), np.ones(1), np.array([[np.nan, 0.5]])
    assert np.isnan(soft.add(*nowhere).improvement).sum() == 1
    assert elitist.add(*nowhere).tolist() == [False]
    assert elitist.metrics()["elites"] == 1


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_a_restored_soft_archive_continues_exactly(kind: Any) -> None:
    config = SoftArchiveConfig(kind=kind, shape=(4, 5), cells=12, alpha=0.3, threshold_min=-100.0)

    def filled(seed: int) -> RibsSoftArchive:
        rng = np.random.default_rng(seed)
        soft = RibsSoftArchive(EliteArchive(3, (4, 5), RANGES, {}, -5.0, config), config)
        for _ in range(3):
            soft.add(*batch(rng))
        return soft

    def batch(rng: np.random.Generator) -> tuple[Any, Any, Any]:
        return (
            rng.standard_normal((20, 3)).astype(np.float32),
            rng.standard_normal(20).astype(np.float32),
            rng.uniform(size=(20, 2)).astype(np.float32),
        )

    original, copy = filled(0), filled(1)
    copy.load_state(original.state())
    rng = np.random.default_rng(2)
    for _ in range(3):
        rows = batch(rng)
        a, b = original.add(*rows), copy.add(*rows)
        np.testing.assert_array_equal(a.improvement, b.improvement)
        np.testing.assert_array_equal(a.entered, b.entered)
    for name, values in original.state().items():
        np.testing.assert_array_equal(values, copy.state()[name], err_msg=name)
    for soft in (original, copy):
        soft.reseed([3])
    np.testing.assert_array_equal(original.sample_elites(50)["solution"], copy.sample_elites(50)["solution"])


def test_it_stores_the_best_of_each_batch_that_enters_a_cell_with_its_fields() -> None:
    config = SoftArchiveConfig(alpha=0.1, threshold_min=0.0, restart_from="entries")
    elitist = EliteArchive(1, (2, 2), RANGES, {"noise": (2,)}, -5.0, config)
    soft, rng, expected = SoftArchive(elitist, config), np.random.default_rng(0), {}
    assert soft.restart_archive is soft
    for number in range(6):
        solution = rng.standard_normal((9, 1)).astype(np.float32)
        objective = (5 - number + rng.standard_normal(9)).astype(np.float32)
        measures = rng.uniform(size=(9, 2)).astype(np.float32)
        noise = rng.standard_normal((9, 2) if number % 2 else 2).astype(np.float32)
        entered = soft.add(solution, objective, measures, {"noise": noise}).entered
        for row in np.flatnonzero(entered)[np.argsort(objective[entered])]:
            cell = tuple(measures[row] > 0.5)
            expected[cell] = (solution[row, 0], *np.broadcast_to(noise, (9, 2))[row])
    assert len(soft) == len(expected) > 1
    copy = SoftArchive(elitist, config)
    copy.load_state(soft.state())
    for archive in (soft, copy):
        sample = archive.sample(np.random.default_rng(1), 200)
        assert {(s[0], *n) for s, n in zip(*sample.values(), strict=True)} == set(expected.values())
    thresholds_only = SoftArchive(elitist, SoftArchiveConfig())
    assert thresholds_only.restart_archive is elitist
    size = SoftArchive.numbers_per_cell(config, 1, {"noise": (2,)})
    assert (size, SoftArchive.numbers_per_cell(SoftArchiveConfig(), 1, {"noise": (2,)})) == (4, 1)


def test_restarts_are_drawn_from_the_elites_while_the_soft_archive_is_empty() -> None:
    config = SoftArchiveConfig(alpha=0.5, threshold_min=1.0)
    elitist = elites(config)
    soft = RibsSoftArchive(elitist, config)
    with pytest.raises(InputError, match="is its threshold_min too high"):
        soft.sample_elites(1)
    elitist.add(np.full((1, 1), 7.0), np.array([0.5]), np.array([[0.2, 0.2]]))
    assert soft.sample_elites(2)["solution"].tolist() == [[7.0], [7.0]]
    soft.add(np.full((1, 1), 3.0), np.array([2.0]), np.array([[0.8, 0.2]]))
    assert soft.sample_elites(2)["solution"].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SoftArchiveConfig(alpha=1.5), r"must lie in \[0, 1\], got 1.5"),
        (SoftArchiveConfig(alpha=-0.1), r"must lie in \[0, 1\]"),
        (
            SoftArchiveConfig(alpha=0.5, threshold_min=None),
            "--archive.alpha 0.5, below 1, needs an --archive.threshold-min",
        ),
        (SoftArchiveConfig(threshold_min=float("nan")), "must be finite"),
    ],
)
def test_settings_that_cannot_work_are_rejected(config: SoftArchiveConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        elites(config)
