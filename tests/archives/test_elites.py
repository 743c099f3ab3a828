"""The elitist archive: additions, re-evaluation, sampling, and states."""

from typing import Any

import numpy as np
import pytest

from ppga.archives import ArchiveConfig, EliteArchive
from ppga.errors import InputError
from ppga.storage import NumpyArray

RANGES = ((0.0, 1.0), (0.0, 1.0))


def empty(config: ArchiveConfig | None = None) -> EliteArchive:
    return EliteArchive(1, (2, 2), RANGES, {}, -5.0, config or ArchiveConfig())


def filled(kind: Any = "grid", n: int = 50, seed: int = 0) -> EliteArchive:
    rng = np.random.default_rng(seed)
    archive = EliteArchive(
        3, (4, 5), RANGES, {"log_std": (2,), "count": ()}, -5.0, ArchiveConfig(kind=kind, cells=12)
    )
    for _ in range(3):
        archive.add(**candidates(rng, n))
    return archive


def candidates(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {
        "solution": rng.standard_normal((n, 3)).astype(np.float32),
        "objective": rng.standard_normal(n).astype(np.float32),
        "measures": rng.uniform(size=(n, 2)).astype(np.float32),
        "log_std": rng.standard_normal((n, 2)).astype(np.float32),
        "count": np.arange(n, dtype=np.float32),
        "length": np.full(n, 9, np.float32),
        "survival": rng.uniform(size=n).astype(np.float32),
    }


def merge(archive: EliteArchive, cells: Any, objective: Any, measures: Any, episodes: int) -> NumpyArray:
    """Merge new episodes that do not vary, in which all elites survive."""
    n = len(cells)
    statistics = {"objective_std": np.zeros(n), "measures_std": np.zeros((n, 2)), "length": np.ones(n)}
    scores = {"objective": np.array(objective), "measures": np.array(measures), "survival": np.ones(n)}
    return archive.merge(np.array(cells), episodes, **scores, **statistics)


def test_elites_that_survive_too_few_episodes_are_not_admitted() -> None:
    archive = EliteArchive(1, (2, 2), RANGES, {}, -5.0, ArchiveConfig(), min_survival=0.75)
    places = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8]], np.float32)
    survival = np.array([0.75, 0.7, 1.0])
    solution = np.zeros((3, 1))
    assert not archive.add(solution, np.ones(3), places).any(), "their survival is not known"
    added = archive.add(solution, np.ones(3), places, 4, survival=survival, length=np.full(3, 9.0))
    assert added.tolist() == [True, False, True]
    assert archive.metrics()["survivor_coverage"] == archive.metrics()["coverage"] == 0.5
    # (4 * 0.75 + 4 * 0) / 8 is too little, and (4 * 1 + 4 * 0.6) / 8 is not
    fallen: dict[str, Any] = {"objective": np.ones(2), "measures": places[[0, 2]], "length": np.full(2, 5.0)}
    stds = {"objective_std": np.zeros(2), "measures_std": np.zeros((2, 2))}
    survival = np.array([0.0, 0.6])
    moved = archive.merge(archive.occupied, 4, survival=survival, **fallen, **stds)
    assert moved.tolist() == [True, False]
    np.testing.assert_allclose(archive.elites()["survival"], [0.8])
    np.testing.assert_allclose(archive.elites()["length"], [7.0])


@pytest.mark.parametrize(("least", "episodes"), [(0.8, 10), (0.6, 5), (0.75, 8), (0.28, 25)])
def test_elites_with_exactly_the_least_survival_are_admitted(least: float, episodes: int) -> None:
    """Means in single precision may be rounded below it."""
    archive = EliteArchive(1, (2, 2), RANGES, {}, -5.0, ArchiveConfig(), min_survival=least)
    survived = np.arange(episodes) < round(least * episodes)
    for rounded in (survived.mean(dtype=np.float32), np.float32(1) - (~survived).mean(dtype=np.float32)):
        place = np.array([[0.2, 0.2]], np.float32)
        assert archive.would_enter(np.ones(1), place, np.array([rounded], np.float32)).all()
        assert not archive.would_enter(np.ones(1), place, np.array([rounded - 0.02], np.float32)).any()


def test_the_coverage_of_survivors_is_unknown_if_that_of_one_elite_is() -> None:
    archive = empty()
    places = np.array([[0.2, 0.2], [0.8, 0.2]], np.float32)
    archive.add(np.zeros((1, 1)), np.ones(1), places[:1])
    archive.add(np.zeros((1, 1)), np.ones(1), places[1:], survival=np.ones(1), length=np.ones(1))
    assert np.isnan(archive.metrics()["survivor_coverage"])
    assert archive.metrics()["coverage"] == 0.5


def test_without_a_minimum_the_coverage_of_survivors_counts_them() -> None:
    archive = empty()
    places = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8]], np.float32)
    survival = np.array([0.7, 0.75, 1.0])
    archive.add(np.zeros((3, 1)), np.ones(3), places, survival=survival, length=np.ones(3))
    assert archive.metrics()["coverage"] == 0.75
    assert archive.metrics()["survivor_coverage"] == 0.5
    assert empty().metrics()["survivor_coverage"] == 0.0


def test_reevaluated_elites_move_to_the_cell_of_all_their_episodes() -> None:
    archive = empty()
    places = np.array([[0.2, 0.2], [0.8, 0.2], [0.8, 0.8]], np.float32)
    archive.add(np.arange(3.0)[:, None], np.array([4.0, 2.0, 1.0]), places, np.array([2, 6, 8]))
    assert archive.least_evaluated(2).tolist() == [0, 2], "cells of the first two: 2 and 6 episodes"
    # the first was lucky in 2 of 8 episodes: 4/4 + 3/4 * 0 = 1, and it moves to (0.2 + 3 * 0.8) / 4 = 0.65
    moved = merge(archive, [0], [0.0], [[0.8, 0.2]], 6)
    assert moved.tolist() == [True]
    assert archive.occupied.tolist() == [2, 3], "the elite of its new cell is better"
    assert archive.metrics()["best"] == 2.0 == archive.best()["objective"]
    assert archive.would_enter(np.array([-1.0]), places[:1]).tolist() == [True], "its old cell is empty"

    moved = merge(archive, [2, 3], [8.0, 3.0], places[1:], 2)
    assert moved.tolist() == [False, False]
    np.testing.assert_allclose(archive.elites()["objective"], [2 + 6 * 2 / 8, 1 + 2 * 2 / 10])
    assert archive.episodes[[2, 3]].tolist() == [8, 10]
    copy = empty()
    copy.load_state(archive.state())
    assert copy.episodes.tolist() == archive.episodes.tolist()

    moved = merge(archive, [2, 3], [np.nan, 1.4], places[1:], 2)
    assert moved.tolist() == [True, False]
    assert archive.occupied.tolist() == [3], "an elite whose new scores are not finite is removed"


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_measures_far_beyond_their_ranges_belong_to_the_cells_at_the_border(kind: Any) -> None:
    archive = EliteArchive(1, (4, 5), RANGES, {}, 0.0, ArchiveConfig(kind=kind, cells=12))
    far = np.array([[1e12, 0.5], [-1e12, 0.5], [0.1, -1e30]], np.float32)
    near = np.array([[1.0, 0.5], [0.0, 0.5], [0.1, 0.0]], np.float32)
    if kind == "grid":
        assert archive.index_of(far).tolist() == archive.index_of(near).tolist() == [17, 2, 0]
    cells = archive.index_of(far)
    assert ((0 <= cells) & (cells < archive.cells)).all()


def test_an_elite_is_the_best_of_its_cell_and_better_than_the_previous_one() -> None:
    archive = empty()
    places = np.array([[0.2, 0.2], [0.2, 0.3], [0.8, 0.2], [0.8, 0.8], [np.nan, 0.2]])
    objective = np.array([1.0, 2.0, -3.0, np.nan, 9.0])
    solution = np.arange(5.0)[:, None]
    expected = [False, True, True, False, False]
    assert archive.would_enter(objective, places).tolist() == expected
    assert archive.add(solution, objective, places).tolist() == expected
    assert archive.elites()["solution"].ravel().tolist() == [1.0, 2.0]
    assert archive.would_enter(objective, places).tolist() == [False] * 5, "equal is not better"
    assert archive.would_enter(objective + 0.5, places).tolist() == expected


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_sparse_sampling_prefers_cells_beside_empty_ones(kind: Any) -> None:
    """Empty neighbors are counted by a slow loop; frequencies must match the counts."""
    archive = filled(kind, n=3)
    cells = archive.occupied
    occupied = set(cells.tolist())
    counts = []
    for cell in cells:
        if kind == "grid":
            row, column = np.unravel_index(cell, (4, 5))
            around = [
                (i, j)
                for i in range(row - 1, row + 2)
                for j in range(column - 1, column + 2)
                if 0 <= i < 4 and 0 <= j < 5 and (i, j) != (row, column)
            ]
            neighbors = [int(np.ravel_multi_index(place, (4, 5))) for place in around]
        else:
            centroids = archive.centroids
            assert centroids is not None
            distance = np.linalg.norm(centroids - centroids[cell], axis=1)
            neighbors = np.argsort(distance)[1:9].tolist()
        counts.append(sum(neighbor not in occupied for neighbor in neighbors))
    assert archive.empty_neighbors(cells).tolist() == counts
    assert len(set(counts)) > 1, "otherwise the test shows nothing"

    def frequencies(**options: bool) -> Any:
        drawn = archive.sample(np.random.default_rng(0), 2000, **options)["index"].tolist()
        return np.array([drawn.count(cell) for cell in cells]) / 2000

    np.testing.assert_allclose(frequencies(sparse=True), np.array(counts) / sum(counts), atol=0.05)
    objective = archive.objectives
    rank = np.array([(np.sum(objective <= each) / len(cells)) ** 4 for each in objective])
    weights = np.array(counts) * rank
    np.testing.assert_allclose(frequencies(sparse=True, promising=True), weights / weights.sum(), atol=0.05)


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_a_restored_archive_continues_exactly(kind: Any) -> None:
    original, copy = filled(kind), filled(kind, seed=1)
    copy.load_state(original.state())
    rng = np.random.default_rng(2)
    for _ in range(3):
        rows = candidates(rng, 20)
        np.testing.assert_array_equal(original.add(**rows), copy.add(**rows))
    assert original.metrics() == copy.metrics()
    for name, values in original.state().items():
        np.testing.assert_array_equal(values, copy.state()[name], err_msg=name)
    first, second = (archive.sample(np.random.default_rng(3), 5)["index"] for archive in (original, copy))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ArchiveConfig(shape=(10,)), "2 measures"),
        (ArchiveConfig(shape=(10, 0)), "at least one cell"),
        (ArchiveConfig(kind="cvt", cells=1), "--archive.cells must be an integer of at least 2, got 1"),
    ],
)
def test_settings_that_cannot_work_are_rejected(config: ArchiveConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        empty(config)
