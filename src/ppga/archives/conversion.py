"""Archives as data structures of other libraries: pandas, pyribs and QDax."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from ribs.archives import CVTArchive, GridArchive

from ppga import machine
from ppga.archives.format import MAIN_FIELDS
from ppga.errors import InputError, import_extra
from ppga.storage import NumpyArray

if TYPE_CHECKING:
    import pandas

    from ppga.archives.archive import Archive


def to_pandas(archive: "Archive", all_fields: bool) -> "pandas.DataFrame":
    """See `Archive.to_pandas`."""
    import pandas

    columns: dict[str, Any] = {}
    if all_fields:
        for name, values in archive.elites.items():
            if values.ndim == 1:
                columns[name] = np.asarray(values)
            elif values.ndim == 2:
                columns |= dict(zip(column_names(name, values), np.asarray(values).T, strict=True))
        return pandas.DataFrame(columns)
    columns = {"index": archive.elites["index"], "objective": archive.elites["objective"]}
    for number, name in enumerate(archive.measure_names):
        columns[name] = archive.elites["measures"][:, number]
        if "measures_std" in archive.elites:
            columns[f"{name} std"] = archive.elites["measures_std"][:, number]
    columns |= {
        name: np.asarray(archive.elites[name])
        for name in ("episodes", "objective_std", "length", "survival")
        if name in archive.elites
    }
    return pandas.DataFrame(columns)


def from_pandas(archive: "Archive", frame: "pandas.DataFrame") -> dict[str, NumpyArray]:
    """Fields of elites, name -> (n, ...), from a data frame; those that it has no columns for are missing.

    Args:
        archive: has the names and shapes of the fields.
        frame: with pyribs' columns.
    """
    rows = {}
    for name, values in archive.elites.items():
        columns = [name] if values.ndim == 1 else column_names(name, values)
        if values.ndim <= 2 and set(columns) <= set(frame.columns):
            rows[name] = frame[columns].to_numpy().reshape(len(frame), *values.shape[1:])
    return rows


def column_names(name: str, values: NumpyArray) -> list[str]:
    """Names of a field's (n, d) columns in pyribs' data frames."""
    return [f"{name}_{number}" for number in range(values.shape[1])]


def to_ribs(archive: "Archive") -> GridArchive | CVTArchive:
    """See `Archive.to_ribs`."""
    extra = {
        name: (values.shape[1:], values.dtype)
        for name, values in archive.elites.items()
        if name not in MAIN_FIELDS
    }
    ribs_archive = empty_ribs(archive, archive.elites["solution"].shape[1], extra)
    if len(archive):
        ribs_archive.add(**{name: values for name, values in archive.elites.items() if name != "index"})
    return ribs_archive


def empty_ribs(archive: "Archive", solution_size: int, extra: dict[str, Any]) -> GridArchive | CVTArchive:
    """An empty pyribs archive with the same cells.

    Args:
        archive: the archive.
        solution_size: numbers in a solution.
        extra: additional fields, name -> shape and type.

    Raises:
        InputError: it would take more memory than is free.
    """
    numbers = solution_size + len(archive.ranges) + 4 + sum(math.prod(shape) for shape, _ in extra.values())
    if 4 * numbers * archive.cells > machine.free_memory():
        raise InputError(
            f"a pyribs archive of {archive.cells:,} cells, each of {numbers:,} numbers, takes more memory "
            "than is free."
        )
    settings: dict[str, Any] = {
        "solution_dim": solution_size,
        "ranges": archive.ranges,
        "qd_score_offset": archive.qd_offset,
        "dtype": np.float32,
        "extra_fields": extra,
    }
    if archive.centroids is None:
        return GridArchive(dims=archive.shape, **settings)
    return CVTArchive(centroids=archive.centroids, **settings)


def cells_of(ribs: GridArchive | CVTArchive, measures: NumpyArray) -> NumpyArray:
    """Cells (n,) of finite measures (n, k); measures beyond their ranges belong to the outermost cells."""
    if isinstance(ribs, GridArchive):  # far beyond the ranges, pyribs' integers would overflow
        measures = np.clip(measures, ribs.lower_bounds, ribs.upper_bounds)
    return np.asarray(ribs.index_of(measures))


def to_qdax(archive: "Archive") -> Any:
    """See `Archive.to_qdax`."""
    qdax = import_extra("qdax.core.containers.mapelites_repertoire", "qdax")
    main = {name: np.asarray(archive.elites[name]) for name in MAIN_FIELDS}
    extra = {name: np.asarray(values) for name, values in archive.elites.items() if name not in MAIN_FIELDS}
    if archive.centroids is None:
        low, high = np.array(archive.ranges).T
        centroids = np.asarray(qdax.compute_euclidean_centroids(archive.shape, list(low), list(high)))
        place = np.stack(np.unravel_index(main["index"], archive.shape), axis=1)
        centers = low + (place + 0.5) / np.array(archive.shape) * (high - low)
    else:
        centroids, centers = archive.centroids, archive.centroids[main["index"]]
    # placed by the centers of their cells: QDax may count measures on a border to another cell
    centers = centers.astype(np.float32)
    repertoire = qdax.MapElitesRepertoire.init(
        main["solution"], main["objective"][:, None], centers, centroids,
        extra_scores=extra, keys_extra_scores=tuple(extra),
    )  # fmt: skip
    cells = np.asarray(qdax.get_cells_indices(centers, centroids))
    return repertoire.replace(descriptors=repertoire.descriptors.at[cells].set(main["measures"]))
