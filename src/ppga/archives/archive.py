"""Elites with everything that is needed to run them: what a file of an archive holds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ribs.archives import CVTArchive, GridArchive

from ppga.archives import conversion
from ppga.archives.format import (
    FORMAT,
    HALF_PRECISION,
    LEARNER_FIELDS,
    POLICY_FIELDS,
    SINGLE_PRECISION,
    check_archive,
    check_shape,
)
from ppga.archives.statistics import MIN_SURVIVAL, survives
from ppga.errors import InputError
from ppga.policies.network import VARIANCE_EPSILON, Network
from ppga.storage import NumpyArray, write_tensors

if TYPE_CHECKING:
    import pandas

Cell = int | Sequence[int]
"""A cell's number, or its place along each measure of a grid."""


@dataclass(frozen=True)
class Archive:
    """Elites, and everything that is needed to run them.

    Attributes:
        description: task, network, cells, ranges, QD-score offset, and how the archive was made; JSON.
        elites: name -> array with one row for each elite, sorted by cell: index, solution (d), objective,
            measures (k); optionally episodes and `STATISTICS` over them (0 if not known); for policies
            log_std, observation_mean, observation_variance, observation_count; and fields of the learner,
            such as returns_mean, returns_covariance, returns_count (PPO) or critics, log_temperature, hyper
            (SAC).
        centroids: (cells, k) of a CVT archive; None for a grid.
    """

    description: dict[str, Any]
    elites: Mapping[str, NumpyArray]
    centroids: NumpyArray | None = None

    # Content.

    def __len__(self) -> int:
        """Number of elites."""
        return len(self.elites["index"])

    @property
    def cells(self) -> int:
        """Number of cells, occupied or empty."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each measure of a grid; (cells,) of a CVT."""
        return tuple(self.description["shape"])

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """Bounds of each measure."""
        return tuple((float(low), float(high)) for low, high in self.description["ranges"])

    @property
    def measure_names(self) -> tuple[str, ...]:
        """Names of the k measures."""
        return tuple(self.description["measure_names"])

    @property
    def qd_offset(self) -> float:
        """Subtracted from every objective in the QD-score."""
        return float(self.description["qd_offset"])

    @property
    def qd_score(self) -> float:
        """Sum over the elites of objective minus offset."""
        return float((self.elites["objective"].astype(np.float64) - self.qd_offset).sum())

    @property
    def coverage(self) -> float:
        """Share of the cells that are occupied."""
        return len(self) / self.cells

    @property
    def survivor_coverage(self) -> float | None:
        """Share of the cells whose elites survive at least 75% of their episodes; None if it is not known."""
        survival, length = self.elites.get("survival"), self.elites.get("length")
        if survival is None or length is None or not np.asarray(length).all():
            return None
        return int(survives(np.asarray(survival), MIN_SURVIVAL).sum()) / self.cells

    # Elites and policies.

    def best(self) -> int:
        """Cell of the elite with the highest objective."""
        self._check_not_empty()
        return int(self.elites["index"][np.argmax(self.elites["objective"])])

    def nearest(self, measures: Sequence[float] | NumpyArray) -> int:
        """Cell of the elite nearest to the measures (k,), each in units of its range."""
        self._check_not_empty()
        target = np.asarray(measures, np.float64)
        if target.shape != (len(self.ranges),) or not np.isfinite(target).all():
            raise InputError(f"expected {len(self.ranges)} finite measures, got {measures!r}.")
        low, high = np.array(self.ranges).T
        distance = np.square((self.elites["measures"] - target) / (high - low)).sum(axis=1)
        return int(self.elites["index"][np.argmin(distance)])

    def elite(self, cell: Cell) -> dict[str, NumpyArray]:
        """All fields of the elite in a cell."""
        row = self._row(cell)
        return {name: values[row] for name, values in self.elites.items()}

    def check_policies(self) -> None:
        """Raise an InputError unless the solutions are policies."""
        if self.description.get("network") is None:
            raise InputError(f"the solutions of {self.description['task']['name']} are not policies.")

    def policy(self, cell: Cell) -> Callable[[NumpyArray], NumpyArray]:
        """The elite of a cell as a function from observations (..., o) to actions (..., a) in [-1, 1].

        Example:
            >>> archive = load_archive("runs/halfcheetah")  # doctest: +SKIP
            >>> act = archive.policy(archive.nearest([0.2, 0.8]))  # doctest: +SKIP
            >>> action = act(observation)  # doctest: +SKIP
        """
        self.check_policies()
        network = Network.of(self.description["network"])
        clip = float(self.description["network"]["observation_clip"])
        limit = self.description["task"].get("clip")
        elite = self.elite(cell)
        parameters = elite["solution"]
        mean, std = elite["observation_mean"], np.sqrt(elite["observation_variance"] + VARIANCE_EPSILON)

        def act(observation: NumpyArray) -> NumpyArray:
            inputs = np.asarray(observation, np.float32)
            inputs = inputs if limit is None else np.clip(inputs, -limit, limit)
            normalized = np.clip((inputs - mean) / std, -clip, clip)
            return np.asarray(np.clip(network(parameters, normalized), -1.0, 1.0))

        return act

    def agent(self, cell: Cell) -> "Agent":
        """The elite of a cell as an agent for a Gymnasium environment: `agent.predict(observation)`.

        Example:
            >>> env = gymnasium.make("HalfCheetah-v5")  # doctest: +SKIP
            >>> action, _ = archive.agent(archive.best()).predict(env.reset()[0])  # doctest: +SKIP
        """
        return Agent(self.policy(cell), np.array(self.description["task"]["control_range"], np.float32))

    # Archives with other elites, cells or fields.

    def only(self, *cells: Cell) -> "Archive":
        """An archive with the elites of the given cells alone, for example to save a single policy."""
        rows = sorted({self._row(cell) for cell in cells})
        chosen = {name: values[rows] for name, values in self.elites.items()}
        return Archive(self.description, chosen, self.centroids)

    def on_grid(self, shape: Sequence[int]) -> "Archive":
        """The elites in a grid with other cells: each in the cell of its measures, the best of each cell.

        Args:
            shape: cells along each measure.
        """
        if len(shape) != len(self.ranges) or not all(size >= 1 for size in shape):
            raise InputError(
                f"a grid needs cells along each of {', '.join(self.measure_names)}; got {tuple(shape)}."
            )
        check_shape(shape)
        grid = Archive(self.description | {"kind": "grid", "shape": [*map(int, shape)]}, self.elites)
        cells = grid.cells_of(np.asarray(self.elites["measures"])) if len(self) else self.elites["index"]
        rows = best_of_each(cells, np.asarray(self.elites["objective"]))
        chosen = {name: np.asarray(values[rows]) for name, values in self.elites.items()}
        return Archive(grid.description, chosen | {"index": cells[rows].astype(np.int32)})

    def without_learners(self) -> "Archive":
        """An archive without the large fields that only learners need, such as critics."""
        kept = {name: values for name, values in self.elites.items() if name not in LEARNER_FIELDS}
        return Archive(self.description, kept, self.centroids)

    def with_elites(self, rows: Mapping[str, NumpyArray]) -> "Archive":
        """An archive with the same description and other elites: the best of each cell.

        Args:
            rows: name -> array with one row for each elite: the fields of this archive's elites, except for
                index, which follows from the measures. Fields that only learners need may be missing.

        Raises:
            InputError: there are no elites, or their fields do not fit those of this archive.
        """
        missing = sorted({*self.elites} & {*POLICY_FIELDS} - {*rows})
        if missing:
            raise InputError(f"elites of this archive need {', '.join(missing)}, which the new ones lack.")
        objective = np.asarray(rows["objective"])
        if not len(objective):
            raise InputError("there are no elites to fill it with: the other archive is empty.")
        for name, values in self.elites.items():
            if name == "index" or name not in rows:
                continue
            field, expected = np.asarray(rows[name]), (len(objective), *values.shape[1:])
            if field.shape != expected or field.dtype.kind not in "fiu":
                raise InputError(f"{name}: expected numbers {expected}, got {field.dtype} {field.shape}.")
            if not np.isfinite(field).all():
                raise InputError(f"{name} has values that are not finite.")
        cells = self.cells_of(np.asarray(rows["measures"]))
        chosen = best_of_each(cells, objective)
        elites = {
            name: np.asarray(rows[name])[chosen].reshape(-1, *values.shape[1:]).astype(values.dtype)
            for name, values in self.elites.items()
            if name != "index" and name in rows
        }
        elites["index"] = cells[chosen].astype(np.int32)
        archive = Archive(self.description, elites, self.centroids)
        check_archive(archive, Path("these elites"))
        return archive

    def cells_of(self, measures: NumpyArray) -> NumpyArray:
        """Cells (n,) of measures (n, k); measures beyond their ranges belong to the outermost cells."""
        return conversion.cells_of(conversion.empty_ribs(self, 1, {}), measures)

    # Other libraries.

    def to_pandas(self, all_fields: bool = False) -> "pandas.DataFrame":
        """A data frame with one row for each elite: its cell, objective, measures and their statistics.

        Args:
            all_fields: include solutions and all other fields that are numbers or vectors, in pyribs' columns
                (solution_0, ..., measures_0, ...), for `from_pandas`.
        """
        return conversion.to_pandas(self, all_fields)

    def from_pandas(self, frame: "pandas.DataFrame") -> "Archive":
        """An archive with the same description and the elites of a data frame.

        Args:
            frame: with pyribs' columns: objective, solution_0, solution_1, ..., measures_0, ....
        """
        return self.with_elites(conversion.from_pandas(self, frame))

    def to_ribs(self) -> GridArchive | CVTArchive:
        """A plain pyribs archive with the same elites and fields.

        Raises:
            InputError: pyribs allocates memory for an elite in every cell, and less than that is free.
        """
        return conversion.to_ribs(self)

    def from_ribs(self, archive: Any) -> "Archive":
        """An archive with the same description and the elites of a pyribs archive with `to_ribs`' fields."""
        return self.with_elites({name: np.asarray(values) for name, values in archive.data().items()})

    def to_qdax(self) -> Any:
        """QDax' `MapElitesRepertoire` with the same elites, in the order of QDax' own grid (needs qdax).

        Genotypes are the flat solutions (d); all other fields of the elites are extra scores.
        """
        self._check_not_empty()
        return conversion.to_qdax(self)

    # Files.

    def save(self, path: Path, *, half: bool = False) -> None:
        """Write the archive to a file, which is replaced if it exists.

        Args:
            path: the file.
            half: write solutions in half precision (float16), in half the space.
        """
        arrays = {f"elites/{name}": values for name, values in self.elites.items()}
        if half:
            arrays["elites/solution"] = _in_half_precision(arrays["elites/solution"])
        if self.centroids is not None:
            arrays["centroids"] = self.centroids
        form = {"format": FORMAT, "version": HALF_PRECISION if half else SINGLE_PRECISION}
        write_tensors(path, arrays, form | self.description | form)

    def _check_not_empty(self) -> None:
        if not len(self):
            raise InputError("the archive is empty.")

    def _row(self, cell: Cell) -> int:
        number = cell if isinstance(cell, int | np.integer) else self._number(cell)
        row = int(np.searchsorted(self.elites["index"], number))
        if row == len(self) or self.elites["index"][row] != number:
            raise InputError(f"cell {cell!r} is empty. Filled: {len(self)} of {self.cells}.")
        return row

    def _number(self, place: Sequence[int]) -> int:
        if self.centroids is not None:
            raise InputError(f"cells of a CVT have numbers, not places; got {place!r}.")
        if len(place) != len(self.shape) or not all(
            0 <= at < size for at, size in zip(place, self.shape, strict=False)
        ):
            raise InputError(f"cell {place!r} is not in an archive of shape {self.shape}.")
        return int(np.ravel_multi_index(tuple(place), self.shape))


@dataclass(frozen=True)
class Agent:
    """A policy with the `predict` method of Stable-Baselines3.

    Attributes:
        policy: observations (..., o) to actions (..., a) in [-1, 1].
        control_range: (a, 2) bounds of the actuators' controls.
    """

    policy: Callable[[NumpyArray], NumpyArray]
    control_range: NumpyArray

    def predict(
        self,
        observation: NumpyArray,
        state: Any = None,
        episode_start: Any = None,  # noqa: ARG002
        deterministic: bool = True,  # noqa: ARG002
    ) -> tuple[NumpyArray, Any]:
        """Controls (..., a) in the actuators' range for observations (..., o), and the unchanged state."""
        low, high = self.control_range.T
        return low + (self.policy(np.asarray(observation)) + 1) / 2 * (high - low), state


def best_of_each(cells: NumpyArray, objective: NumpyArray) -> NumpyArray:
    """Rows of the best elite of each cell, sorted by cell.

    Args:
        cells: (n,) cell of each elite; -1 for elites without a cell, which are left out.
        objective: (n,)
    """
    order = np.lexsort((-objective, cells))  # by cell, and within a cell the best first
    order = order[cells[order] >= 0]
    _, firsts = np.unique(cells[order], return_index=True)
    return np.asarray(order[firsts])


def _in_half_precision(solutions: NumpyArray) -> NumpyArray:
    """Solutions as float16; an InputError if a number is too large for it."""
    with np.errstate(over="ignore"):
        halves = np.asarray(solutions).astype(np.float16)
    if not np.isfinite(halves).all():
        raise InputError(f"solutions beyond {np.finfo(np.float16).max} do not fit half precision.")
    return halves
