import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from ribs.archives import CVTArchive, GridArchive

from ppga.archives import Archive, ArchiveConfig, ArchivePair, load_archive
from ppga.archives.pair import elites_of
from ppga.errors import InputError
from ppga.networks import Network
from ppga.storage import write_tensors

RANGES = ((0.0, 1.0), (0.0, 1.0))
NETWORK = Network((3, 4, 2))


def pair(
    config: ArchiveConfig, fields: dict[str, tuple[int, ...]] | None = None, size: int = 1
) -> ArchivePair:
    return ArchivePair(size, (2, 2), RANGES, fields or {}, -5.0, config)


def offer(archives: ArchivePair, *objectives: float, cell: tuple[float, float] = (0.2, 0.2)) -> Any:
    n = len(objectives)
    return archives.add(
        np.arange(n, dtype=np.float32)[:, None], np.array(objectives, np.float32), np.array([cell] * n)
    )


def threshold(archives: ArchivePair) -> float:
    return float(elites_of(archives.soft)["threshold"][0])


@pytest.mark.parametrize(
    ("alpha", "first", "second"),
    [
        (0.0, 1.0, 1.0),  # never moves from threshold_min
        (0.1, 1.0 + 0.1 * (3.0 - 1.0), 1.2 + 0.1 * (2.0 - 1.2)),
        (1.0, 3.0, 3.0),  # 2 does not enter: 3 is the threshold
    ],
)
def test_the_threshold_follows_each_entry_by_alpha(alpha: float, first: float, second: float) -> None:
    archives = pair(ArchiveConfig(alpha=alpha, threshold_min=1.0))
    added = offer(archives, 3.0)
    assert added.improvement == pytest.approx([3.0 - 1.0]), "above threshold_min, as it was before"
    assert threshold(archives) == pytest.approx(first)
    added = offer(archives, 2.0)
    assert added.improvement == pytest.approx([2.0 - first])
    assert list(added.entered) == [first < 2.0]
    assert threshold(archives) == pytest.approx(second)


def test_a_batch_moves_the_threshold_once_by_the_mean_of_those_that_enter() -> None:
    archives = pair(ArchiveConfig(alpha=0.1, threshold_min=0.0))
    added = offer(archives, 4.0, 2.0, -1.0)
    assert added.improvement == pytest.approx([4.0, 2.0, -1.0]), "all against the threshold before the batch"
    assert list(added.entered) == [True, True, False]
    # two entries of mean 3: (1 - 0.1)^2 of the old threshold 0, and the rest of the way to 3
    assert threshold(archives) == pytest.approx((1 - 0.9**2) * 3.0)
    assert elites_of(archives.soft)["objective"] == pytest.approx([4.0])


def test_alpha_one_is_elitist_in_batches_too() -> None:
    archives = pair(ArchiveConfig(alpha=1.0, threshold_min=0.0))
    offer(archives, 4.0, 2.0)
    assert threshold(archives) == 4.0, "pyribs' own batch rule would say 3, the mean"
    assert not offer(archives, 3.5).entered[0]


def test_nothing_below_threshold_min_enters_the_soft_archive_but_the_elitist_one_keeps_it() -> None:
    archives = pair(ArchiveConfig(alpha=0.5, threshold_min=1.0))
    added = offer(archives, 0.5)
    assert added.improvement == pytest.approx([-0.5])
    assert archives.soft.empty
    assert archives.figures()["best"] == 0.5


@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1, max_size=30))
def test_batches_of_one_follow_the_paper(entries: list[tuple[float, int]]) -> None:
    """Algorithm 2, one solution at a time, written out; improvement before the threshold moves."""
    alpha, archives = 0.25, pair(ArchiveConfig(alpha=0.25, threshold_min=-1.0))
    best: dict[int, float] = {}
    thresholds = np.full(4, -1.0)
    for objective, cell in entries:
        place = (0.25 + 0.5 * (cell // 2), 0.25 + 0.5 * (cell % 2))
        added = offer(archives, objective, cell=place)
        assert added.improvement[0] == pytest.approx(objective - thresholds[cell], abs=1e-4)
        if objective > thresholds[cell] + 1e-5:
            assert added.entered[0]
            thresholds[cell] = (1 - alpha) * thresholds[cell] + alpha * objective
        best[cell] = max(best.get(cell, -np.inf), objective)
    figures = archives.figures()
    assert figures["qd_score"] == pytest.approx(sum(value + 5.0 for value in best.values()), abs=1e-3)
    assert figures["coverage"] == len(best) / 4
    assert figures["best"] == pytest.approx(max(best.values()))
    assert figures["mean"] == pytest.approx(np.mean(list(best.values())), abs=1e-4)


def test_what_is_not_finite_is_turned_away_and_counted() -> None:
    archives = pair(ArchiveConfig(alpha=0.5, threshold_min=0.0))
    added = offer(archives, np.nan, 1.0, np.inf)
    assert np.isnan(added.improvement).sum() == 2
    assert np.isnan(added.improvement[[0, 2]]).all()
    assert added.improvement[1] == 1.0
    assert list(added.entered) == [False, True, False]
    assert archives.figures()["best"] == 1.0
    nowhere = archives.add(np.zeros((1, 1)), np.ones(1), np.array([[np.nan, 0.5]]))
    assert np.isnan(nowhere.improvement).sum() == 1
    assert archives.figures()["elites"] == 1


def test_elites_that_are_judged_again_go_where_all_their_episodes_say() -> None:
    archives = pair(ArchiveConfig(alpha=0.5, threshold_min=0.0))
    places = np.array([[0.2, 0.2], [0.8, 0.2], [0.8, 0.8]], np.float32)
    archives.keep(np.arange(3.0)[:, None], np.array([4.0, 2.0, 1.0]), places, np.array([2, 6, 8]))
    assert archives.doubtful(2).tolist() == [0, 2], "cells of the first two: judged by 2 and by 6 episodes"
    # the first was lucky, by 2 of 8 episodes: 4/4 + 3/4 * 0 = 1, and it is at (0.2 + 3 * 0.8) / 4 = 0.65
    moved = archives.correct(np.array([0]), np.zeros(1), np.array([[0.8, 0.2]]), 6)
    assert moved.tolist() == [True]
    assert archives.result.data("index").tolist() == [2, 3], "in its new cell a better one lives"
    assert archives.figures()["best"] == 2.0 == archives.result.stats.obj_max
    assert archives.promising(np.array([-1.0]), places[:1]).tolist() == [True], "its old cell is empty"

    stays = archives.correct(np.array([2, 3]), np.array([8.0, 3.0]), places[1:], 2)
    assert stays.tolist() == [False, False]
    elites = elites_of(archives.result)
    np.testing.assert_allclose(elites["objective"], [2 + 6 * 2 / 8, 1 + 2 * 2 / 10])
    assert archives.judged[[2, 3]].tolist() == [8, 10]
    copy = pair(ArchiveConfig(alpha=0.5, threshold_min=0.0))
    copy.load_state(archives.state())
    assert copy.judged.tolist() == archives.judged.tolist()

    gone = archives.correct(np.array([2, 3]), np.array([np.nan, 1.4]), places[1:], 2)
    assert gone.tolist() == [True, False]
    assert archives.result.data("index").tolist() == [3], "who cannot be judged leaves"


def test_elites_are_the_best_of_each_cell_and_better_than_before() -> None:
    archives = pair(ArchiveConfig(alpha=0.5, threshold_min=0.0))
    places = np.array([[0.2, 0.2], [0.2, 0.3], [0.8, 0.2], [0.8, 0.8], [np.nan, 0.2]])
    objective = np.array([1.0, 2.0, -3.0, np.nan, 9.0])
    solution = np.arange(5.0)[:, None]
    expected = [False, True, True, False, False]
    assert archives.promising(objective, places).tolist() == expected
    assert archives.keep(solution, objective, places).tolist() == expected
    assert archives.result.data("solution").ravel().tolist() == [1.0, 2.0]
    assert archives.promising(objective, places).tolist() == [False] * 5, "nothing is better than itself"
    assert archives.promising(objective + 0.5, places).tolist() == expected
    assert archives.soft.empty


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_sparse_restarts_prefer_cells_beside_empty_ones(kind: Any) -> None:
    """Empty neighbours counted by a slow loop; and drawn as often as they say."""
    archives = filled(kind, n=3)
    cells = np.sort(archives.result.data("index"))
    taken = set(archives.result.data("index").tolist())
    counted = []
    for cell in cells:
        if kind == "grid":
            row, column = np.unravel_index(cell, (4, 5))
            around = [
                (i, j)
                for i in range(row - 1, row + 2)
                for j in range(column - 1, column + 2)
                if 0 <= i < 4 and 0 <= j < 5 and (i, j) != (row, column)
            ]
            numbers = [int(np.ravel_multi_index(place, (4, 5))) for place in around]
        else:
            centroids = archives.centroids
            assert centroids is not None
            far = np.linalg.norm(centroids - centroids[cell], axis=1)
            numbers = np.argsort(far)[1:9].tolist()
        counted.append(sum(number not in taken for number in numbers))
    assert archives.empty_neighbours(cells).tolist() == counted
    assert len(set(counted)) > 1, "else this says nothing"
    draws = np.random.default_rng(0)
    drawn = [int(archives.random_elite(draws, sparse=True)["index"]) for _ in range(2000)]
    often = np.array([drawn.count(cell) for cell in cells]) / 2000
    np.testing.assert_allclose(often, np.array(counted) / sum(counted), atol=0.05)
    objective = elites_of(archives.result, cells)["objective"]
    by_rank = np.array([(np.sum(objective <= one) / len(cells)) ** 4 for one in objective])
    drawn = archives.random_elites(draws, 2000, sparse=True, good=True)["index"].tolist()
    often = np.array([drawn.count(cell) for cell in cells]) / 2000
    likely = np.array(counted) * by_rank
    np.testing.assert_allclose(often, likely / likely.sum(), atol=0.05)


def filled(kind: Any = "grid", n: int = 50, seed: int = 0) -> ArchivePair:
    rng = np.random.default_rng(seed)
    config = ArchiveConfig(kind=kind, alpha=0.3, threshold_min=-100.0, shape=(4, 5), cells=12)
    fields: dict[str, tuple[int, ...]] = {
        "log_std": (2,), "observation_mean": (3,), "observation_variance": (3,), "observation_count": (),
        "extra": (),
    }  # fmt: skip
    archives = ArchivePair(NETWORK.parameters, (4, 5), RANGES, fields, -5.0, config)
    for _ in range(3):
        archives.add(
            rng.standard_normal((n, NETWORK.parameters)).astype(np.float32),
            rng.standard_normal(n).astype(np.float32),
            rng.uniform(size=(n, 2)).astype(np.float32),
            log_std=rng.standard_normal((n, 2)),
            observation_mean=rng.standard_normal((n, 3)),
            observation_variance=rng.uniform(0.1, 2.0, (n, 3)),
            observation_count=np.ones(n),
            extra=np.arange(n),
        )
    return archives


def exported(archives: ArchivePair) -> Archive:
    elites = elites_of(archives.result)
    del elites["threshold"]
    description = {
        "task": {"name": "test", "physics": "mujoco", "episode_length": 100, "integrator": "fast"},
        "network": {"sizes": list(NETWORK.sizes), "observation_clip": 10.0},
        "shape": list(archives.shape),
        "ranges": [list(bounds) for bounds in RANGES],
        "measure_names": ["left", "right"],
        "qd_offset": -5.0,
    }
    return Archive(description, elites, archives.centroids)


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_a_restored_pair_goes_on_exactly(kind: Any) -> None:
    whole, copy = filled(kind), filled(kind, seed=1)
    copy.load_state(whole.state())
    rng = np.random.default_rng(2)
    for _ in range(3):
        rows = {
            "solution": rng.standard_normal((20, NETWORK.parameters)),
            "objective": rng.standard_normal(20),
            "measures": rng.uniform(size=(20, 2)),
            "log_std": np.zeros((20, 2)),
            "observation_mean": np.zeros((20, 3)),
            "observation_variance": np.ones((20, 3)),
            "observation_count": np.ones(20),
            "extra": np.zeros(20),
        }
        a, b = whole.add(**rows), copy.add(**rows)
        np.testing.assert_array_equal(a.improvement, b.improvement)
    assert whole.figures() == copy.figures()
    for name, values in whole.state().items():
        np.testing.assert_array_equal(values, copy.state()[name], err_msg=name)
    draws = [archives.random_elite(np.random.default_rng(3)) for archives in (whole, copy)]
    assert draws[0]["index"] == draws[1]["index"]


@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_archives_survive_the_disk_and_become_plain_pyribs(kind: Any, tmp_path: Path) -> None:
    archives = filled(kind)
    archive = exported(archives)
    archive.save(tmp_path / "archive.safetensors")
    loaded = load_archive(tmp_path)
    assert loaded.description["task"] == archive.description["task"]
    for name, values in archive.elites.items():
        np.testing.assert_array_equal(loaded.elites[name], values)
        assert loaded.elites[name].dtype == values.dtype
    ribs = loaded.to_ribs()
    assert isinstance(ribs, GridArchive if kind == "grid" else CVTArchive)
    assert ribs.stats.qd_score == pytest.approx(loaded.qd_score, rel=1e-5)
    assert ribs.stats.coverage == pytest.approx(loaded.coverage)
    assert sorted(ribs.data("index")) == sorted(loaded.elites["index"])
    frame = loaded.to_pandas()
    assert list(frame.columns) == ["index", "objective", "left", "right"]
    np.testing.assert_array_equal(frame["objective"], loaded.elites["objective"])


def test_elites_are_found_by_what_they_do() -> None:
    archive = exported(filled())
    best = archive.elite(archive.best())
    assert best["objective"] == archive.elites["objective"].max()
    wanted = np.array([0.3, 0.9])
    distances = np.linalg.norm(archive.elites["measures"] - wanted, axis=1)
    assert archive.nearest(wanted) == archive.elites["index"][distances.argmin()]
    number = int(archive.elites["index"][3])
    place = [int(at) for at in np.unravel_index(number, (4, 5))]
    np.testing.assert_array_equal(archive.elite(place)["solution"], archive.elite(number)["solution"])


def test_a_policy_acts_as_its_network_says() -> None:
    archive = exported(filled())
    cell = archive.best()
    elite, act = archive.elite(cell), archive.policy(cell)
    observation = np.random.default_rng(0).standard_normal(3) * 3
    hidden = np.clip(
        (observation - elite["observation_mean"]) / np.sqrt(elite["observation_variance"] + 1e-8), -10, 10
    )
    weights = elite["solution"]
    first = np.tanh(hidden @ weights[:12].reshape(3, 4) + weights[12:16])
    expected = np.clip(first @ weights[16:24].reshape(4, 2) + weights[24:], -1, 1)
    np.testing.assert_allclose(act(observation), expected, atol=1e-5)
    many = act(np.stack([observation] * 7))
    np.testing.assert_allclose(many, np.stack([expected] * 7), atol=1e-5)


def test_an_archive_is_read_and_run_without_jax(tmp_path: Path) -> None:
    exported(filled()).save(tmp_path / "archive.safetensors")
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import ppga, numpy as np\n"
        f"archive = ppga.load_archive({str(tmp_path)!r})\n"
        "print(archive.policy(archive.best())(np.zeros(3)).shape)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "(2,)"


def test_damaged_and_foreign_files_give_one_clear_error(tmp_path: Path) -> None:
    archive = exported(filled())
    file = tmp_path / "archive.safetensors"
    archive.save(file)
    whole = file.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cannot read"):
            load_archive(file)
    with pytest.raises(InputError, match="no archive in"):
        load_archive(tmp_path / "nothing")
    write_tensors(file, {"x": np.zeros(1)}, {"format": "something else"})
    with pytest.raises(InputError, match="is not an archive"):
        load_archive(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("objective", np.full(20, np.nan, np.float32), "not finite"),
        ("objective", np.zeros(3, np.float32), "3 rows"),
        ("solution", np.zeros((20, 5), np.float32), "do not fit"),
        ("index", np.arange(20, dtype=np.int32)[::-1].copy(), "not distinct numbers"),
        ("index", np.arange(20, dtype=np.int32) + 100, "not distinct numbers"),
        ("index", None, "has no index"),
    ],
)
def test_archives_that_do_not_hold_together_are_refused(
    tmp_path: Path, field: str, value: Any, message: str
) -> None:
    archive = exported(filled())
    assert len(archive) == 20
    elites = {**archive.elites, field: value}
    if value is None:
        del elites[field]
    Archive(archive.description, elites).save(tmp_path / "archive.safetensors")
    with pytest.raises(InputError, match=message):
        load_archive(tmp_path)


def test_questions_an_archive_cannot_answer(tmp_path: Path) -> None:  # noqa: ARG001
    archive = exported(filled(n=2))
    empty = next(cell for cell in range(20) if cell not in archive.elites["index"])
    for ask, message in (
        (lambda: archive.policy(empty), "is empty"),
        (lambda: archive.elite((9, 9)), "not in an archive of shape"),
        (lambda: archive.nearest([0.5]), "expected 2 finite measures"),
        (lambda: archive.nearest([0.5, np.nan]), "expected 2 finite measures"),
    ):
        with pytest.raises(InputError, match=message):
            ask()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ArchiveConfig(alpha=1.5), r"must lie in \[0, 1\], got 1.5"),
        (ArchiveConfig(alpha=-0.1), r"must lie in \[0, 1\]"),
        (ArchiveConfig(alpha=0.5, threshold_min=None), "needs a threshold_min"),
        (ArchiveConfig(threshold_min=float("nan")), "must be finite"),
        (ArchiveConfig(shape=(10,)), "2 measures"),
        (ArchiveConfig(shape=(10, 0)), "at least one cell"),
        (ArchiveConfig(kind="cvt", cells=1), "at least 2 cells"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: ArchiveConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pair(config)
