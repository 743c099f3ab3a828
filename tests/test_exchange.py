"""Archives to and from pyribs, QDax and data frames."""

import warnings

import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.archives import Archive
from ppga.runs.loop import check_start, make_algorithm, to_archive
from test_export import archive


def same(one: Archive, other: Archive) -> None:
    assert set(one.elites) == set(other.elites)
    for name, values in one.elites.items():
        np.testing.assert_array_equal(other.elites[name], values, err_msg=name)


def placed() -> Archive:
    """Elites in the cells that their measures fall into."""
    made = archive()
    measures = np.array([[0.1, 0.2], [0.4, 0.1], [0.9, 0.8]], np.float32)
    return Archive(made.description, dict(made.elites) | {"measures": measures})


def test_by_way_of_pyribs() -> None:
    made = placed()
    ribs = made.to_ribs()
    same(made, made.from_ribs(ribs))
    # one that pyribs finds better takes its cell
    row = {name: values[1:2].copy() for name, values in made.elites.items() if name != "index"}
    ribs.add(**(row | {"objective": np.array([7.0], np.float32)}))
    again = made.from_ribs(ribs)
    assert again.elites["objective"].tolist() == [0.0, 7.0, 2.0]


def test_a_pyribs_archive_without_elites_is_told() -> None:
    made = placed()
    empty = made.to_ribs()
    empty.clear()
    with pytest.raises(InputError, match="the other archive is empty"):
        made.from_ribs(empty)


def test_what_learning_goes_on_from_survives_pyribs_but_no_data_frame() -> None:
    """A matrix an elite has no columns: pyribs refuses to make them, and ours leaves it out."""
    algorithm = make_algorithm("hopper", ppga.preset("smoke", "hopper")[0])
    shapes = {"solution": (algorithm.problem.solution_size,), **algorithm.problem.fields}
    rows = {name: np.ones((1, *shape), np.float32) for name, shape in shapes.items()}
    rows |= {"objective": np.ones(1, np.float32), "measures": np.full((1, 1), 0.55, np.float32)}
    made = Archive(to_archive(algorithm).description, {"index": np.array([5]), **rows})
    ribs = made.to_ribs()
    assert made.elites["returns_covariance"].ndim == 3
    with pytest.raises(ValueError, match="returns_covariance"):
        ribs.data(return_type="pandas")
    check_start(made.from_ribs(ribs), algorithm)
    with pytest.raises(InputError, match="returns_covariance is missing"):
        check_start(made.from_pandas(made.to_pandas(whole=True)), algorithm)


def test_by_way_of_a_data_frame() -> None:
    made = placed()
    frame = made.to_pandas(whole=True)
    same(made, made.from_pandas(frame.sample(frac=1.0, random_state=0)))
    assert list(made.to_pandas().columns) == ["index", "objective", "a", "b"]
    # pyribs' own frame has the same columns
    ribs = made.to_ribs().data(return_type="pandas")
    same(made, made.from_pandas(ribs))
    with pytest.raises(InputError, match="have log_std, and these have not"):
        made.from_pandas(frame.drop(columns=["log_std_0"]))
    with pytest.raises(InputError, match="not finite"):
        made.from_pandas(frame.assign(objective=np.nan))


def test_elites_that_do_not_fit_are_refused() -> None:
    made = placed()
    rows = {name: np.array(values) for name, values in made.elites.items()}
    for name, values, message in (
        ("solution", rows["solution"][:, :3], "solution: expected numbers"),
        ("measures", rows["measures"][:2], "measures: expected numbers"),
        ("measures", np.full((3, 2), np.nan), "measures has values that are not finite"),
        ("log_std", np.full((3, 3), "a"), "log_std: expected numbers"),
        ("objective", rows["objective"][:0], "the other archive is empty"),
    ):
        with pytest.raises(InputError, match=message):
            made.filled(rows | {name: values})


def test_on_borders_nobody_is_lost_on_the_way_to_qdax() -> None:
    pytest.importorskip("qdax")
    base = archive()
    cells = np.arange(9)
    corner = np.stack(np.unravel_index(cells, (3, 3)), axis=1) / 3
    elites = {name: np.repeat(values[:1], 9, axis=0) for name, values in base.elites.items()}
    elites |= {"index": cells.astype(np.int32), "measures": corner.astype(np.float32)}
    elites["objective"] = np.arange(9, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Archive(base.description, elites).to_qdax()
    assert sorted(np.asarray(made.fitnesses)[:, 0]) == list(range(9))
    order = np.argsort(np.asarray(made.fitnesses)[:, 0])
    np.testing.assert_array_equal(np.asarray(made.descriptors)[order], elites["measures"])


def test_qdax_has_every_elite_where_qdax_would_put_it() -> None:
    """QDax numbers cells otherwise; each elite is the one of the centroid nearest to its measures."""
    pytest.importorskip("qdax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = placed()
        repertoire = made.to_qdax()
    fitness = np.asarray(repertoire.fitnesses)[:, 0]
    assert len(fitness) == 9
    filled = np.flatnonzero(np.isfinite(fitness))
    centroids = np.asarray(repertoire.centroids)
    assert len(filled) == 3
    assert sorted(fitness[filled]) == [0.0, 1.0, 2.0]
    for cell in filled:
        row = int(fitness[cell])
        nearest = np.argmin(np.linalg.norm(centroids - made.elites["measures"][row], axis=1))
        assert nearest == cell
        np.testing.assert_array_equal(repertoire.genotypes[cell], made.elites["solution"][row])
        np.testing.assert_array_equal(repertoire.extra_scores["log_std"][cell], made.elites["log_std"][row])
    assert filled.tolist() != made.elites["index"].tolist(), "matching by number would be wrong"
