"""The elitist archive: the best policy of every cell, and how many episodes its scores are based on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from ribs.archives import CVTArchive, GridArchive
from scipy.stats import rankdata

from ppga.archives.conversion import cells_of
from ppga.archives.files import check_shape
from ppga.archives.statistics import MIN_SURVIVAL, combined, statistics_shapes, survives
from ppga.config import check_whole, common
from ppga.errors import InputError
from ppga.storage import ArraySpec, NumpyArray, check_arrays, finite_rows

Fields = Mapping[str, tuple[int, ...]]
"""Name -> shape of what is stored with each elite besides its solution; float32."""

PROMISING_POWER = 4
"""A promising elite is drawn by its rank among all elites to this power: the best fifth gets 67%."""


@dataclass(frozen=True)
class ArchiveConfig:
    """The cells of the archive.

    Attributes:
        kind: grid, or cvt (cells around evenly distributed centroids).
        shape: grid cells along each measure; the task's own by default.
        cells: number of cells of a CVT.
    """

    kind: Literal["grid", "cvt"] = "grid"
    shape: tuple[int, ...] | None = common(None)
    cells: int = 1024

    def count(self, shape: tuple[int, ...]) -> int:
        """Number of cells for a problem whose own shape is the given one.

        Raises:
            InputError: too many cells.
        """
        cells = (self.cells,) if self.kind == "cvt" else self.shape or shape
        check_shape(cells)
        return math.prod(cells)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work with that many measures."""
        if self.kind == "grid" and self.shape is not None:
            if len(self.shape) != measures:
                raise InputError(
                    f"--archive.shape must name the cells along each of {measures} measures, "
                    f"got {self.shape}."
                )
            if min(self.shape) < 1:
                raise InputError(
                    f"--archive.shape needs at least one cell along each measure, got {self.shape}."
                )
        check_whole("archive.cells", self.cells, least=2)


class EliteArchive:
    """The best solution of every cell, as arrays over the cells.

    pyribs divides the measure space into cells; elites can also be removed here and move to other cells when
    they are evaluated again, which pyribs' archives do not offer.

    Args:
        solution_size: numbers d in a solution.
        shape: grid cells along each measure, unless the config says otherwise.
        ranges: bounds of each measure.
        fields: what else is stored with each elite.
        qd_offset: subtracted from every objective in the QD-score.
        config: settings.
        min_survival: survival that elites must have at least; see `STATISTICS`.

    Attributes:
        shape: grid cells along each measure; (cells,) of a CVT.
        fields: names of what the problem stores with each elite.
        episodes: (cells,) number of episodes that each elite's scores are based on.
    """

    def __init__(
        self,
        solution_size: int,
        shape: tuple[int, ...],
        ranges: tuple[tuple[float, float], ...],
        fields: Fields,
        qd_offset: float,
        config: ArchiveConfig,
        min_survival: float = 0.0,
    ) -> None:
        config.check(len(ranges))
        self.ranges, self.qd_offset, self.min_survival = ranges, qd_offset, min_survival
        self.fields = tuple(fields)
        self.shape = tuple(config.shape or shape) if config.kind == "grid" else (config.cells,)
        self.cells = math.prod(self.shape)
        self._geometry: GridArchive | CVTArchive
        if config.kind == "grid":
            self._geometry = GridArchive(solution_dim=0, dims=self.shape, ranges=ranges, dtype=np.float32)
        else:
            self._use_centroids(config.cells)
        shapes = {
            "solution": (solution_size,),
            "objective": (),
            "measures": (len(ranges),),
            **statistics_shapes(len(ranges)),
            **fields,
        }
        # zeros take memory only where they are written to
        self._data = {name: np.zeros((self.cells, *each), np.float32) for name, each in shapes.items()}
        self._occupied = np.zeros(self.cells, bool)
        self.episodes = np.zeros(self.cells, np.int64)

    def _use_centroids(self, centroids: int | NumpyArray) -> None:
        """Use cells around centroids (cells, k), or around that many evenly distributed ones."""
        self._geometry = CVTArchive(
            solution_dim=0, centroids=centroids, ranges=self.ranges, seed=0, dtype=np.float32
        )

    def __len__(self) -> int:
        """Number of elites."""
        return int(self._occupied.sum())

    @property
    def empty(self) -> bool:
        """Whether there is no elite."""
        return not self._occupied.any()

    @property
    def centroids(self) -> NumpyArray | None:
        """Centroids (cells, k) of a CVT; None for a grid."""
        return self._geometry.centroids if isinstance(self._geometry, CVTArchive) else None

    @property
    def occupied(self) -> NumpyArray:
        """Cells (n,) that hold an elite, rising."""
        return np.flatnonzero(self._occupied)

    @property
    def objectives(self) -> NumpyArray:
        """Objectives (n,) of the elites, in the order of `occupied`."""
        return self._data["objective"][self.occupied]

    @property
    def solutions(self) -> NumpyArray:
        """Solutions of all cells (cells, d), zeros where there is no elite."""
        return self.values("solution")

    def values(self, name: str) -> NumpyArray:
        """One field of all cells (cells, ...), zeros where there is no elite."""
        return self._data[name]

    def index_of(self, measures: NumpyArray) -> NumpyArray:
        """Cells (n,) of finite measures (n, k); beyond their ranges, those at the border."""
        return cells_of(self._geometry, measures)

    def elites(self, cells: NumpyArray | None = None) -> dict[str, NumpyArray]:
        """All fields of the elites in cells (n,), which are stored as `index`; of all elites by default."""
        cells = self.occupied if cells is None else cells
        elites = {name: values[cells] for name, values in self._data.items()}
        return {**elites, "index": np.asarray(cells, np.int32)}

    # Additions.

    def would_enter(
        self, objective: NumpyArray, measures: NumpyArray, survival: NumpyArray | None = None
    ) -> NumpyArray:
        """Which (n,) candidates would become elites.

        A candidate enters if it is better than the elite of its cell, and the best of the candidates that
        share the cell. Candidates that are not finite, or survive too few episodes, do not enter.

        Args:
            objective: (n,).
            measures: (n, k).
            survival: (n,) see `STATISTICS`; None if it is not known.
        """
        enters = np.zeros(len(objective), bool)
        admitted = np.isfinite(objective) & np.isfinite(measures).all(axis=1)
        if self.min_survival:
            admitted &= False if survival is None else survives(survival, self.min_survival)
        rows = np.flatnonzero(admitted)
        if len(rows):
            cells = self.index_of(measures[rows])
            better = ~self._occupied[cells] | (objective[rows] > self._data["objective"][cells])
            rows, cells = rows[better], cells[better]
            order = np.argsort(-objective[rows], kind="stable")
            _, first = np.unique(cells[order], return_index=True)
            enters[rows[order[first]]] = True
        return enters

    def add(
        self,
        solution: NumpyArray,
        objective: NumpyArray,
        measures: NumpyArray,
        episodes: int | NumpyArray = 1,
        **fields: NumpyArray,
    ) -> NumpyArray:
        """Add candidates; candidates with anything that is not finite are rejected.

        Args:
            solution: (n, d).
            objective: (n,).
            measures: (n, k).
            episodes: number of episodes that the scores are based on: one for all, or (n,).
            **fields: (n, ...) each; `STATISTICS` that are missing are stored as 0, which means unknown.

        Returns:
            Which (n,) became elites.
        """
        rows = {"solution": solution, "objective": objective, "measures": measures, **fields}
        finite = finite_rows(rows.values())
        enters = self.would_enter(np.where(finite, objective, np.nan), measures, fields.get("survival"))
        if enters.any():
            cells = self.index_of(measures[enters])
            for name, values in self._data.items():
                values[cells] = rows[name][enters] if name in rows else 0.0
            self._occupied[cells] = True
            self.episodes[cells] = np.broadcast_to(episodes, len(enters))[enters]
        return enters

    def least_evaluated(self, n: int) -> NumpyArray:
        """Cells, n at most, whose elites' scores are based on the fewest episodes."""
        cells = self.occupied
        return cells[np.argsort(self.episodes[cells], kind="stable")[:n]]

    def merge(self, cells: NumpyArray, episodes: int, **scores: NumpyArray) -> NumpyArray:
        """Merge another evaluation of the elites of n cells into their scores.

        Each elite moves to the cell of its mean measures over all its episodes; where two meet, the better
        one stays. An elite whose new scores are not finite is removed, and so is one that has survived too
        few episodes.

        Args:
            cells: (n,) different occupied cells.
            episodes: number of new episodes of each.
            **scores: objective (n,), measures (n, k) and `STATISTICS` over the new episodes.

        Returns:
            Which (n,) elites left their cell, for another one or altogether.
        """
        elites = self.elites(cells)
        del elites["index"]
        total = self.episodes[cells] + episodes
        elites |= combined(elites, scores, (episodes / total).astype(np.float32))
        self._occupied[cells] = False
        self.episodes[cells] = 0
        self.add(**elites, episodes=total)
        finite = np.isfinite(elites["objective"]) & np.isfinite(elites["measures"]).all(axis=1)
        new_cells = self.index_of(np.where(finite[:, None], elites["measures"], 0))
        rejected = ~finite | ~survives(elites["survival"], self.min_survival)
        return np.asarray(rejected | (new_cells != cells))

    # Sampling.

    def best(self) -> dict[str, NumpyArray]:
        """All fields of the elite with the highest objective."""
        cell = self.occupied[np.argmax(self.objectives)]
        return {name: values[0] for name, values in self.elites(np.array([cell])).items()}

    def sample(
        self, rng: np.random.Generator, n: int, sparse: bool = False, promising: bool = False
    ) -> dict[str, NumpyArray]:
        """Elites (n, ...) drawn with replacement; all are equally likely by default.

        Args:
            rng: random generator.
            n: number of elites.
            sparse: make elites with empty neighboring cells more likely.
            promising: make elites that are better than many others more likely.
        """
        cells = self.occupied
        if not len(cells):
            raise InputError("the archive is empty.")
        weights = np.ones(len(cells))
        if sparse:
            weights *= self.empty_neighbors(cells) + 1e-3  # equal if all cells are occupied
        if promising:
            weights *= (rankdata(self.objectives) / len(cells)) ** PROMISING_POWER
        probabilities = weights / weights.sum() if sparse or promising else None
        return self.elites(rng.choice(cells, n, p=probabilities))

    def empty_neighbors(self, cells: NumpyArray) -> NumpyArray:
        """Number of empty cells around each of the given cells (n,).

        The neighbors of a grid's cell are the cells that touch it, also at corners; of a CVT's cell the eight
        nearest centroids.
        """
        centroids = self.centroids
        if centroids is not None:
            low, high = np.array(self.ranges).T
            places = (centroids - low) / (high - low)
            distances = np.linalg.norm(places[cells][:, None] - places[None], axis=2)
            nearest = np.argsort(distances, axis=1)[:, 1:9]
            return np.asarray((~self._occupied[nearest]).sum(axis=1))
        empty = np.pad(~self._occupied.reshape(self.shape), 1)  # cells beyond the border do not count
        windows = np.lib.stride_tricks.sliding_window_view(empty, (3,) * len(self.shape))
        counts = windows.sum(axis=tuple(range(len(self.shape), 2 * len(self.shape))))
        return np.asarray(counts.ravel()[cells] - ~self._occupied[cells])

    def metrics(self) -> dict[str, float]:
        """QD-score, coverage, coverage of survivors, best and mean objective, and number of elites.

        Sums are computed in float64. The coverage of survivors is NaN if it is not known.
        """
        objectives = np.sort(self.objectives.astype(np.float64))
        if not len(objectives):
            return {
                "qd_score": 0.0, "coverage": 0.0, "survivor_coverage": 0.0, "best": float("nan"),
                "mean": float("nan"), "elites": 0,
            }  # fmt: skip
        survivors = int(survives(self._data["survival"][self.occupied], MIN_SURVIVAL).sum())
        known = self._data["length"][self.occupied].all()
        return {
            "qd_score": float((objectives - self.qd_offset).sum()),
            "coverage": len(objectives) / self.cells,
            "survivor_coverage": survivors / self.cells if known else float("nan"),
            "best": float(objectives[-1]),
            "mean": float(objectives.mean()),
            "elites": len(objectives),
        }

    # Checkpoints.

    def state(self) -> dict[str, NumpyArray]:
        """All elites, their episodes, and the centroids of a CVT (which depend on the version of pyribs)."""
        centroids = {} if self.centroids is None else {"centroids": self.centroids}
        return {**self.elites(), "episodes": self.episodes[self.occupied], **centroids}

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`.

        Raises:
            InputError: it cannot be the state of such an archive.
        """
        n = np.size(state.get("index", ()))
        expected: dict[str, ArraySpec] = {
            name: (values.dtype, (n, *values.shape[1:])) for name, values in self._data.items()
        }
        expected |= {"index": (np.dtype(np.int32), (n,)), "episodes": (np.dtype(np.int64), (n,))}
        if self.centroids is not None:
            expected["centroids"] = self.centroids.dtype, self.centroids.shape
        check_arrays(state, expected)
        check_cells(state["index"], self.cells)
        for name, values in state.items():
            if not np.isfinite(values).all():
                raise InputError(f"the array {name!r} has values that are not finite.")
        if (state["episodes"] < 0).any():
            raise InputError("episode counts must be at least 0.")
        if self.centroids is not None:
            self._use_centroids(state["centroids"])
        cells = state["index"]
        for name, values in self._data.items():
            values[cells] = state[name]
        self._occupied[:] = False
        self._occupied[cells] = True
        self.episodes[:] = 0
        self.episodes[cells] = state["episodes"]


def check_cells(cells: NumpyArray, count: int) -> None:
    """Raise an InputError unless cells (n,) are rising and below `count`."""
    if len(cells) and not (0 <= cells[0] <= cells[-1] < count and (cells[1:] > cells[:-1]).all()):
        raise InputError(f"its elites are not in different cells below {count}, in order.")
