"""The novelty of transitions, against slow and obvious versions, and QDax where that is installed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppga.problems import novelty
from ppga.problems.novelty import ACCEPTANCE, REFERENCES, NoveltyArchive, NoveltyProblem
from ppga.runs.build import make_algorithm

from helpers.settings import settings, slider


def test_novelty_is_the_mean_distance_to_recorded_steps() -> None:
    rng = np.random.default_rng(0)
    recorded = rng.integers(0, 2, (REFERENCES, 2)).astype(np.float32)
    replay = SimpleNamespace(sample=lambda *_: np.concatenate([np.zeros((REFERENCES, 5)), recorded], axis=1))
    problem: Any = SimpleNamespace(measure_names=("a", "b"), replay=replay, archive=None)
    rows = np.concatenate([np.ones((2, 3, 5)), rng.integers(0, 2, (2, 3, 2))], axis=-1)
    extended = NoveltyProblem.with_extra_gains(problem, rows, rng)
    for place in np.ndindex(2, 3):
        expected = np.mean([np.linalg.norm(rows[place][-2:] - reference) for reference in recorded])
        assert extended[place][-1] == pytest.approx(expected, rel=1e-5)
        np.testing.assert_array_equal(extended[place][:-1], rows[place])


def test_a_novelty_archive_accepts_points_far_from_all_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point by point, in a ring of 40 entries that overflows."""
    monkeypatch.setattr(novelty, "SIZE", 40)
    rng = np.random.default_rng(0)
    archive, entries = NoveltyArchive(2), np.zeros((0, 2), np.float32)
    for number in range(4):
        points = rng.random((60, 2)).astype(np.float32) + 0.4 * number
        new: list[Any] = []
        for point in points:
            others = [*entries, *new]
            if all(np.linalg.norm(point - other) > ACCEPTANCE for other in others):
                new.append(point)
        entries = np.array([*entries, *new])[-40:]
        archive.add(points)
        assert sorted(map(tuple, archive.entries)) == sorted(map(tuple, entries))
    assert archive.added > 40
    points = rng.random((30, 2)).astype(np.float32)
    for point, value in zip(points, archive.novelty(points), strict=True):
        nearest = np.sort(np.linalg.norm(entries - point, axis=1))[:5]
        assert value == pytest.approx(np.square(nearest).mean(), rel=1e-4)


def test_a_novelty_archive_equals_qdax() -> None:
    qdax = pytest.importorskip("qdax.core.containers.archive", reason="QDax is not installed")
    rng = np.random.default_rng(1)
    archive, reference = NoveltyArchive(2), qdax.Archive.create(ACCEPTANCE, 2, novelty.SIZE)
    for _ in range(2):
        points = rng.random((50, 2)).astype(np.float32)
        archive.add(points)
        reference = reference.insert(points)
    assert archive.added == reference.current_position
    expected = qdax.score_euclidean_novelty(reference, points, 5, 1.0)
    np.testing.assert_allclose(archive.novelty(points), expected, rtol=1e-3, atol=1e-5)


def test_flags_of_two_feet_are_all_equally_novel() -> None:
    """With four entries only, the mean is over these; QDax' is infinite."""
    archive = NoveltyArchive(2)
    flags = np.random.default_rng(0).integers(0, 2, (100, 2)).astype(np.float32)
    archive.add(flags)
    assert archive.added == 4
    np.testing.assert_allclose(archive.novelty(flags), 1.0, rtol=1e-6)  # (0 + 1 + 1 + 2) / 4


def test_a_novelty_archive_fills_during_a_run_and_is_restored() -> None:
    algorithm, again = (make_algorithm(slider(), settings("qdpg", novelty="archive")) for _ in range(2))
    problem: Any = algorithm.problem
    problem.open(None)
    algorithm.start()
    algorithm.step()
    places = problem.replay.at(np.arange(problem.replay.written))[:, -1]
    assert problem.archive.added > 0
    distance = np.abs(places[:, None] - problem.archive.entries[:, 0]).min(axis=1)
    assert distance.max() <= ACCEPTANCE, "every step is near an entry"
    state = {name: values for name, values in problem.external_state().items() if name != "replay"}
    assert set(state) == {"novelty_points", "novelty_added"}
    restored: Any = again.problem
    restored.archive.load_state({name.removeprefix("novelty_"): values for name, values in state.items()})
    np.testing.assert_array_equal(restored.archive.entries, problem.archive.entries)
