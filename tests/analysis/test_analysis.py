"""Metrics, corrected archives, and the files they are written to."""

import copy
import json
import threading
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from ribs.archives import GridArchive

import ppga
from ppga.analysis import corrected, metrics
from ppga.archives import Archive, load_archive
from ppga.errors import InputError
from ppga.storage import read_tensors, write_tensors
from ppga.tasks.locomotion import Hopper

OBJECTIVES = np.array([10.0, -20.0, 5.0])


def test_metrics_of_a_small_archive() -> None:
    """Three of eight cells occupied, with 10, -20 and 5; offset -30."""
    assert metrics.qd_score(OBJECTIVES, -30.0) == 40 + 10 + 35
    assert metrics.normalized_qd_score(OBJECTIVES, -30.0, 8) == 85 / 8
    assert metrics.coverage(OBJECTIVES, 8) == 3 / 8
    assert metrics.best(OBJECTIVES) == 10
    assert metrics.mean(OBJECTIVES) == pytest.approx(-5 / 3)
    np.testing.assert_allclose(
        metrics.ccdf(OBJECTIVES, 8, [-100, -20, -19, 5, 10, 11]), np.array([3, 3, 2, 2, 1, 0]) / 8
    )
    assert metrics.qd_score([], -30.0) == metrics.coverage([], 8) == 0
    assert np.isnan(metrics.best([]))


def test_metrics_are_those_of_pyribs() -> None:
    archive = GridArchive(solution_dim=1, dims=(2, 4), ranges=((0, 1), (0, 1)), qd_score_offset=-30.0)
    archive.add(np.zeros((3, 1)), OBJECTIVES, np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]]))
    stats = archive.stats
    assert metrics.qd_score(OBJECTIVES, -30.0) == stats.qd_score
    assert metrics.normalized_qd_score(OBJECTIVES, -30.0, 8) == stats.norm_qd_score
    assert metrics.coverage(OBJECTIVES, 8) == stats.coverage
    assert metrics.best(OBJECTIVES) == stats.obj_max
    assert metrics.mean(OBJECTIVES) == pytest.approx(stats.obj_mean)


@given(
    hnp.arrays(np.float64, st.integers(0, 20), elements=st.floats(-5, 5)),
    hnp.arrays(np.float64, 5, elements=st.floats(-6, 6)),
)
def test_the_ccdf_counts_elites(objective: Any, thresholds: Any) -> None:
    expected = [sum(value >= threshold for value in objective) / 20 for threshold in thresholds]
    np.testing.assert_allclose(metrics.ccdf(objective, 20, thresholds), expected)


def test_bootstrapped_intervals_match_a_slow_implementation() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, (12, 2))
    low, high = metrics.bootstrap(samples, draws=20_000, seed=1)
    rng = np.random.default_rng(2)
    means = np.array([samples[[rng.integers(12) for _ in range(12)]].mean(axis=0) for _ in range(20_000)])
    np.testing.assert_allclose(low, np.quantile(means, 0.025, axis=0), atol=0.06)
    np.testing.assert_allclose(high, np.quantile(means, 0.975, axis=0), atol=0.06)
    assert (low < samples.mean(axis=0)).all()
    assert (samples.mean(axis=0) < high).all()
    _, largest = metrics.bootstrap(samples, lambda drawn: drawn.max(axis=1))
    np.testing.assert_array_equal(largest, samples.max(axis=0))
    for bound in metrics.bootstrap(samples[:1]):
        assert np.isnan(bound).all(), "one seed has no interval"


class Same(Hopper):
    """Always the same start, so that a policy always has the same score."""

    name = "same"

    def initial(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:  # noqa: ARG002
        return jnp.asarray(self.model.qpos0, jnp.float32), jnp.zeros(self.model.nv)


@pytest.fixture(scope="module")
def task() -> Same:
    return Same(episode_length=20)


@pytest.fixture(scope="module")
def archive(task: Same) -> Archive:
    config, _ = ppga.preset("smoke", "hopper")
    config = config.replace(**{"strategy.sigma0": 3.0, "branches": 12})
    return ppga.train(task, config, budget=ppga.Budget(iterations=2)).archive


def test_the_corrected_archive_of_deterministic_policies_is_the_archive(task: Same, archive: Archive) -> None:
    reports: list[tuple[int, int]] = []
    evaluation = corrected.evaluate(
        archive, 2, task=task, progress=lambda done, of: reports.append((done, of))
    )
    again = evaluation.corrected
    assert len(archive) >= 3
    np.testing.assert_array_equal(again.elites["index"], archive.elites["index"])
    np.testing.assert_allclose(again.elites["objective"], archive.elites["objective"], rtol=1e-3)
    np.testing.assert_array_equal(again.elites["solution"], archive.elites["solution"])
    np.testing.assert_array_equal(again.elites["episodes"], 2)
    for name in ("length", "survival"):
        np.testing.assert_allclose(again.elites[name], archive.elites[name], err_msg=name)
    assert again.survivor_coverage == archive.survivor_coverage
    np.testing.assert_allclose(evaluation.objective_std, 0, atol=1e-3)
    np.testing.assert_allclose(evaluation.drift, 0, atol=1e-5)
    assert reports[-1] == (len(archive), len(archive))
    figures = corrected.evaluation_metrics(evaluation)
    assert figures["reproducibility"] == 1
    assert figures["coverage"] == archive.coverage
    assert figures["qd_score"] == pytest.approx(archive.qd_score, rel=1e-3)


def test_policies_that_were_evaluated_with_sampled_actions_are_reevaluated_with_them(
    task: Same, archive: Archive
) -> None:
    assert archive.description["actions"] == "mean"
    noisy = Archive(archive.description | {"actions": "sample"}, archive.elites)
    std = corrected.evaluate(noisy, 3, task=task).objective_std
    assert (std > 1e-2).all(), "same start, different episodes"


def test_of_policies_that_land_in_one_cell_the_best_remains(task: Same, archive: Archive) -> None:
    """Elites in wrong cells with wrong scores move to the right cells."""
    wrong = {**archive.elites, "objective": archive.elites["objective"] + 1000}
    wrong["measures"] = np.clip(archive.elites["measures"] + 0.3, 0, 1)
    doubled = {name: np.concatenate([values, values[:1]]) for name, values in wrong.items()}
    doubled["index"] = np.arange(len(doubled["index"]), dtype=np.int32)
    evaluation = corrected.evaluate(Archive(archive.description, doubled), 1, task=task)
    np.testing.assert_array_equal(evaluation.corrected.elites["index"], archive.elites["index"])
    np.testing.assert_allclose(
        evaluation.corrected.elites["objective"], archive.elites["objective"], rtol=1e-3
    )
    assert len(evaluation.index) == len(archive) + 1
    assert corrected.evaluation_metrics(evaluation)["objective_loss_median"] == pytest.approx(1000, rel=1e-3)
    table = evaluation.to_pandas()
    assert len(table) == len(archive) + 1
    assert (table["drift"] > 0.1).any()


def test_a_mapped_archive_is_evaluated_and_saved(task: Same, archive: Archive, tmp_path: Path) -> None:
    archive.save(tmp_path / "archive.safetensors")
    mapped = load_archive(tmp_path, mapped=True)
    assert isinstance(mapped.elites["solution"], np.memmap)
    evaluation = corrected.evaluate(mapped, 1, task=task)
    corrected.save(evaluation, tmp_path)
    loaded = load_archive(tmp_path / "corrected.safetensors")
    np.testing.assert_array_equal(loaded.elites["solution"], archive.elites["solution"])
    assert loaded.description["corrected"] == {"episodes": 1, "physics": "mujoco"}
    assert (tmp_path / "evaluation.csv").read_text().startswith("cell,new_cell,objective")
    assert (tmp_path / "evaluation.json").exists()


def test_archives_that_cannot_be_evaluated_are_rejected(task: Same, archive: Archive) -> None:
    sphere = ppga.train("sphere", budget=ppga.Budget(iterations=1)).archive
    with pytest.raises(InputError, match="are not policies"):
        corrected.evaluate(sphere)
    with pytest.raises(InputError, match="task of your own"):
        corrected.evaluate(archive)
    empty = Archive(archive.description, {name: values[:0] for name, values in archive.elites.items()})
    with pytest.raises(InputError, match="empty"):
        corrected.evaluate(empty, task=task)
    with pytest.raises(InputError, match="is of same, not of walker2d"):
        corrected.evaluate(archive, task=ppga.make_task("walker2d"))
    wider = copy.copy(task)
    wider.observation_size = 12
    with pytest.raises(InputError, match="take 11 observations and return 3 actions; same has 12"):
        corrected.evaluate(archive, task=wider)


def test_mapped_arrays_are_from_one_version_of_a_file(tmp_path: Path) -> None:
    """A file is read repeatedly while it is replaced, as by a viewer during training."""
    file, done = tmp_path / "x.safetensors", threading.Event()

    def write(number: int) -> None:
        names = "abcdefgh"[: 4 + number % 3]
        arrays = {name: np.full((1 + number, 3), number, np.int32) for name in names}
        write_tensors(file, arrays, {"number": number, "names": names})

    def write_all() -> None:
        for number in range(60):
            write(number)
        done.set()

    write(0)
    writing = threading.Thread(target=write_all)
    writing.start()
    numbers = set()
    while not done.is_set():
        arrays, description = read_tensors(file, mapped=True)
        assert sorted(arrays) == list(description["names"])
        for values in arrays.values():
            number = description["number"]
            np.testing.assert_array_equal(values, np.full((1 + number, 3), number))
        numbers.add(description["number"])
    writing.join()
    assert len(numbers) > 1, "the file was replaced while it was read"


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 80]},
        {"dtype": "F32", "shape": [20], "data_offsets": [0, 80]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": 8},
        {"dtype": "F32", "shape": [2]},
        [],
    ],
)
def test_a_wrong_header_is_rejected(entry: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    text = json.dumps({"__metadata__": {"ppga": "{}"}, "a": entry}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    for mapped in (False, True):
        with pytest.raises(InputError, match=r"cannot read .*x\.safetensors"):
            read_tensors(file, mapped)


def test_files_can_be_read_by_the_safetensors_library(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(7, np.int64),
        "c": np.zeros((0, 4), np.float16),
        "d": np.array([True, False]),
        "e": np.arange(10, dtype=np.uint8)[::2],
    }
    write_tensors(tmp_path / "x.safetensors", arrays, {"hello": "world"})
    theirs = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    for mapped in (False, True):
        ours, description = read_tensors(tmp_path / "x.safetensors", mapped)
        assert description == {"hello": "world"}
        for name, values in arrays.items():
            for read in (ours[name], theirs[name]):
                np.testing.assert_array_equal(read, values)
                assert (read.dtype, read.shape) == (values.dtype, values.shape)
