import copy
import json
import threading
from dataclasses import replace
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


def test_figures_of_a_hand_made_archive() -> None:
    """Three of eight cells filled, with 10, -20 and 5; offset -30."""
    assert metrics.qd_score(OBJECTIVES, -30.0) == 40 + 10 + 35
    assert metrics.normalised_qd_score(OBJECTIVES, -30.0, 8) == 85 / 8
    assert metrics.coverage(OBJECTIVES, 8) == 3 / 8
    assert metrics.best(OBJECTIVES) == 10
    assert metrics.mean(OBJECTIVES) == pytest.approx(-5 / 3)
    np.testing.assert_allclose(
        metrics.ccdf(OBJECTIVES, 8, [-100, -20, -19, 5, 10, 11]), np.array([3, 3, 2, 2, 1, 0]) / 8
    )
    assert metrics.qd_score([], -30.0) == metrics.coverage([], 8) == 0
    assert np.isnan(metrics.best([]))


def test_figures_are_those_of_pyribs() -> None:
    archive = GridArchive(solution_dim=1, dims=(2, 4), ranges=((0, 1), (0, 1)), qd_score_offset=-30.0)
    archive.add(np.zeros((3, 1)), OBJECTIVES, np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]]))
    stats = archive.stats
    assert metrics.qd_score(OBJECTIVES, -30.0) == stats.qd_score
    assert metrics.normalised_qd_score(OBJECTIVES, -30.0, 8) == stats.norm_qd_score
    assert metrics.coverage(OBJECTIVES, 8) == stats.coverage
    assert metrics.best(OBJECTIVES) == stats.obj_max
    assert metrics.mean(OBJECTIVES) == pytest.approx(stats.obj_mean)


@given(
    hnp.arrays(np.float64, st.integers(0, 20), elements=st.floats(-5, 5)),
    hnp.arrays(np.float64, 5, elements=st.floats(-6, 6)),
)
def test_the_ccdf_is_a_plain_count(objective: Any, thresholds: Any) -> None:
    expected = [sum(value >= threshold for value in objective) / 20 for threshold in thresholds]
    np.testing.assert_allclose(metrics.ccdf(objective, 20, thresholds), expected)


def test_bootstrapped_intervals_are_those_of_a_slow_reference() -> None:
    samples = np.random.default_rng(0).normal(3.0, 2.0, (12, 2))
    low, high = metrics.bootstrap(samples, draws=20_000, seed=1)
    draws = np.random.default_rng(2)
    means = np.array([samples[[draws.integers(12) for _ in range(12)]].mean(axis=0) for _ in range(20_000)])
    np.testing.assert_allclose(low, np.quantile(means, 0.025, axis=0), atol=0.06)
    np.testing.assert_allclose(high, np.quantile(means, 0.975, axis=0), atol=0.06)
    assert (low < samples.mean(axis=0)).all()
    assert (samples.mean(axis=0) < high).all()
    _, largest = metrics.bootstrap(samples, lambda drawn: drawn.max(axis=1))
    np.testing.assert_array_equal(largest, samples.max(axis=0))
    for one in metrics.bootstrap(samples[:1]):
        assert np.isnan(one).all(), "one seed says nothing of the others"


class Same(Hopper):
    """Always the same start, so that a policy's score is its own."""

    name = "same"

    def initial(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:  # noqa: ARG002
        return jnp.asarray(self.model.qpos0, jnp.float32), jnp.zeros(self.model.nv)


@pytest.fixture(scope="module")
def task() -> Same:
    return Same(episode_length=20)


@pytest.fixture(scope="module")
def archive(task: Same) -> Archive:
    config, _ = ppga.preset("smoke", "hopper")
    config = replace(config, search=replace(config.search, sigma0=3.0, branches=12))
    return ppga.train(task, config, budget=ppga.Budget(iterations=2)).archive


def test_the_corrected_archive_of_deterministic_policies_is_the_archive(task: Same, archive: Archive) -> None:
    seen: list[tuple[int, int]] = []
    evaluation = corrected.evaluate(archive, 2, task=task, progress=lambda done, of: seen.append((done, of)))
    again = evaluation.corrected
    assert len(archive) >= 3
    np.testing.assert_array_equal(again.elites["index"], archive.elites["index"])
    np.testing.assert_allclose(again.elites["objective"], archive.elites["objective"], rtol=1e-3)
    np.testing.assert_array_equal(again.elites["solution"], archive.elites["solution"])
    np.testing.assert_array_equal(again.elites["episodes"], 2)
    np.testing.assert_allclose(evaluation.objective_spread, 0, atol=1e-3)
    np.testing.assert_allclose(evaluation.moved, 0, atol=1e-5)
    assert seen[-1] == (len(archive), len(archive))
    figures = corrected.figures(evaluation)
    assert figures["stayed_in_cell"] == 1
    assert figures["coverage"] == archive.coverage
    assert figures["qd_score"] == pytest.approx(archive.qd_score, rel=1e-3)


def test_policies_that_were_judged_with_their_noise_are_judged_with_it_again(
    task: Same, archive: Archive
) -> None:
    assert archive.description["judge"] == "mean"
    noisy = Archive(archive.description | {"judge": "sample"}, archive.elites)
    spread = corrected.evaluate(noisy, 3, task=task).objective_spread
    assert (spread > 1e-2).all(), "the same start, another way"


def test_policies_that_land_in_one_cell_leave_the_best(task: Same, archive: Archive) -> None:
    """Elites filed in wrong cells with invented scores end where they belong."""
    lies = {**archive.elites, "objective": archive.elites["objective"] + 1000}
    lies["measures"] = np.clip(archive.elites["measures"] + 0.3, 0, 1)
    twins = {name: np.concatenate([values, values[:1]]) for name, values in lies.items()}
    twins["index"] = np.arange(len(twins["index"]), dtype=np.int32)
    evaluation = corrected.evaluate(Archive(archive.description, twins), 1, task=task)
    np.testing.assert_array_equal(evaluation.corrected.elites["index"], archive.elites["index"])
    np.testing.assert_allclose(
        evaluation.corrected.elites["objective"], archive.elites["objective"], rtol=1e-3
    )
    assert len(evaluation.index) == len(archive) + 1
    assert corrected.figures(evaluation)["objective_lost_median"] == pytest.approx(1000, rel=1e-3)
    table = evaluation.to_pandas()
    assert len(table) == len(archive) + 1
    assert (table["moved"] > 0.1).any()


def test_a_mapped_archive_is_evaluated_and_saved_without_being_loaded(
    task: Same, archive: Archive, tmp_path: Path
) -> None:
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


def test_what_cannot_be_evaluated_is_told(task: Same, archive: Archive) -> None:
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
    with pytest.raises(InputError, match="see 11 numbers and give 3; same shows 12"):
        corrected.evaluate(archive, task=wider)


def test_mapped_arrays_are_all_of_one_file(tmp_path: Path) -> None:
    """Read again and again while others take its place: as a viewer does while a run is trained."""
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
        arrays, told = read_tensors(file, mapped=True)
        assert sorted(arrays) == list(told["names"])
        for values in arrays.values():
            np.testing.assert_array_equal(values, np.full((1 + told["number"], 3), told["number"]))
        numbers.add(told["number"])
    writing.join()
    assert len(numbers) > 1, "it was replaced meanwhile"


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
def test_a_header_that_lies_is_refused(entry: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    text = json.dumps({"__metadata__": {"ppga": "{}"}, "a": entry}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    for mapped in (False, True):
        with pytest.raises(InputError, match=r"cannot read .*x\.safetensors"):
            read_tensors(file, mapped)


def test_files_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
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
