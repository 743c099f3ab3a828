"""Conversion of archives to and from pyribs, QDax and data frames."""

import warnings

import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.archives import Archive
from ppga.runs.build import make_algorithm
from ppga.runs.results import check_initial_archive, to_archive

from helpers.archives import archive


def assert_equal(a: Archive, b: Archive) -> None:
    assert set(a.elites) == set(b.elites)
    for name, values in a.elites.items():
        np.testing.assert_array_equal(b.elites[name], values, err_msg=name)


def consistent() -> Archive:
    """Elites in the cells of their measures."""
    example = archive()
    measures = np.array([[0.1, 0.2], [0.4, 0.1], [0.9, 0.8]], np.float32)
    return Archive(example.description, dict(example.elites) | {"measures": measures})


def test_an_archive_survives_conversion_to_pyribs() -> None:
    original = consistent()
    ribs = original.to_ribs()
    assert_equal(original, original.from_ribs(ribs))
    # a better elite replaces the one of its cell
    row = {name: values[1:2].copy() for name, values in original.elites.items() if name != "index"}
    ribs.add(**(row | {"objective": np.array([7.0], np.float32)}))
    again = original.from_ribs(ribs)
    assert again.elites["objective"].tolist() == [0.0, 7.0, 2.0]


def test_a_pyribs_archive_without_elites_is_rejected() -> None:
    original = consistent()
    empty = original.to_ribs()
    empty.clear()
    with pytest.raises(InputError, match="the other archive is empty"):
        original.from_ribs(empty)


def test_fields_of_learners_survive_pyribs_but_not_data_frames() -> None:
    """A matrix for each elite has no columns: pyribs raises an error, and `to_pandas` leaves it out."""
    algorithm = make_algorithm("hopper", ppga.preset("smoke", "hopper")[0])
    shapes = {"solution": (algorithm.problem.solution_size,), **algorithm.problem.fields}
    rows = {name: np.ones((1, *shape), np.float32) for name, shape in shapes.items()}
    rows |= {"objective": np.ones(1, np.float32), "measures": np.full((1, 1), 0.55, np.float32)}
    original = Archive(to_archive(algorithm).description, {"index": np.array([5]), **rows})
    ribs = original.to_ribs()
    assert original.elites["returns_covariance"].ndim == 3
    with pytest.raises(ValueError, match="returns_covariance"):
        ribs.data(return_type="pandas")
    check_initial_archive(original.from_ribs(ribs), algorithm)
    with pytest.raises(InputError, match="initial archive has no 'returns_covariance'"):
        check_initial_archive(original.from_pandas(original.to_pandas(all_fields=True)), algorithm)


def test_an_archive_survives_conversion_to_a_data_frame() -> None:
    original = consistent()
    frame = original.to_pandas(all_fields=True)
    assert_equal(original, original.from_pandas(frame.sample(frac=1.0, random_state=0)))
    assert list(original.to_pandas().columns) == ["index", "objective", "a", "b"]
    # pyribs' own frame has the same columns
    ribs = original.to_ribs().data(return_type="pandas")
    assert_equal(original, original.from_pandas(ribs))
    with pytest.raises(InputError, match="need log_std, which the new ones lack"):
        original.from_pandas(frame.drop(columns=["log_std_0"]))
    with pytest.raises(InputError, match="not finite"):
        original.from_pandas(frame.assign(objective=np.nan))


def test_elites_that_do_not_fit_are_rejected() -> None:
    original = consistent()
    rows = {name: np.array(values) for name, values in original.elites.items()}
    for name, values, message in (
        ("solution", rows["solution"][:, :3], "solution: expected numbers"),
        ("measures", rows["measures"][:2], "measures: expected numbers"),
        ("measures", np.full((3, 2), np.nan), "measures has values that are not finite"),
        ("log_std", np.full((3, 3), "a"), "log_std: expected numbers"),
        ("objective", rows["objective"][:0], "the other archive is empty"),
    ):
        with pytest.raises(InputError, match=message):
            original.with_elites(rows | {name: values})


def test_elites_on_borders_of_cells_survive_conversion_to_qdax() -> None:
    pytest.importorskip("qdax")
    base = archive()
    cells = np.arange(9)
    corner = np.stack(np.unravel_index(cells, (3, 3)), axis=1) / 3
    elites = {name: np.repeat(values[:1], 9, axis=0) for name, values in base.elites.items()}
    elites |= {"index": cells.astype(np.int32), "measures": corner.astype(np.float32)}
    elites["objective"] = np.arange(9, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repertoire = Archive(base.description, elites).to_qdax()
    assert sorted(np.asarray(repertoire.fitnesses)[:, 0]) == list(range(9))
    order = np.argsort(np.asarray(repertoire.fitnesses)[:, 0])
    np.testing.assert_array_equal(np.asarray(repertoire.descriptors)[order], elites["measures"])


def test_every_elite_is_in_the_cell_where_qdax_would_add_it() -> None:
    """QDax numbers cells differently; each elite is at the centroid nearest to its measures."""
    pytest.importorskip("qdax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = consistent()
        repertoire = original.to_qdax()
    fitness = np.asarray(repertoire.fitnesses)[:, 0]
    assert len(fitness) == 9
    filled = np.flatnonzero(np.isfinite(fitness))
    centroids = np.asarray(repertoire.centroids)
    assert len(filled) == 3
    assert sorted(fitness[filled]) == [0.0, 1.0, 2.0]
    for cell in filled:
        row = int(fitness[cell])
        nearest = np.argmin(np.linalg.norm(centroids - original.elites["measures"][row], axis=1))
        assert nearest == cell
        np.testing.assert_array_equal(repertoire.genotypes[cell], original.elites["solution"][row])
        np.testing.assert_array_equal(
            repertoire.extra_scores["log_std"][cell], original.elites["log_std"][row]
        )
    assert filled.tolist() != original.elites["index"].tolist(), "matching by number would be wrong"
