"""A soft archive that steers the search, beside an elitist one that keeps the best of every cell."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ribs.archives import CVTArchive, GridArchive
from scipy.stats import rankdata

from ppga.archives.files import check_shape
from ppga.errors import InputError
from ppga.storage import Like, NumpyArray, check_arrays, like

Fields = Mapping[str, tuple[int, ...]]
"""Name -> shape of what is kept with each elite besides its solution; float32."""

GOOD = 4
"""How much more likely a good elite is: as its rank among all, to this power: the best fifth gets 67%."""


@dataclass(frozen=True)
class ArchiveConfig:
    """The archive.

    Attributes:
        kind: grid, or cvt (cells around centroids spread evenly over the measure space).
        shape: grid cells along each measure; the task's own by default.
        cells: number of cells of a CVT.
        alpha: how far an entry moves its cell's threshold to its objective: 1 keeps the best, 0 all.
        threshold_min: what a policy must exceed to enter an empty cell.
    """

    kind: Literal["grid", "cvt"] = "grid"
    shape: tuple[int, ...] | None = None
    cells: int = 1024
    alpha: float = 0.3
    threshold_min: float | None = 0.0

    def count(self, shape: tuple[int, ...]) -> int:
        """How many cells there are, where the problem's own shape is the given one.

        Raises:
            InputError: too many.
        """
        cells = (self.cells,) if self.kind == "cvt" else self.shape or shape
        check_shape(cells)
        return math.prod(cells)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work with that many measures."""
        if not 0 <= self.alpha <= 1:
            raise InputError(f"the archive's alpha must lie in [0, 1], got {self.alpha}.")
        if self.alpha < 1 and self.threshold_min is None:
            raise InputError(f"a soft archive (alpha {self.alpha} < 1) needs a threshold_min to start from.")
        if self.threshold_min is not None and not np.isfinite(self.threshold_min):
            raise InputError(
                f"threshold_min must be finite, got {self.threshold_min}; leave it out for none."
            )
        if self.kind == "grid" and self.shape is not None:
            if len(self.shape) != measures:
                raise InputError(
                    f"the archive's shape must name the cells of {measures} measures, got {self.shape}."
                )
            if min(self.shape) < 1:
                raise InputError(
                    f"the archive's shape needs at least one cell along each measure, got {self.shape}."
                )
        if self.cells < 2:
            raise InputError(f"a CVT archive needs at least 2 cells, got {self.cells}.")


class _Restorable:
    """What our archives add to pyribs' own."""

    instead: "_Restorable | None" = None
    """Where to draw elites from while this one is empty."""

    def _compute_thresholds(
        self,
        indices: NumpyArray,
        objective: NumpyArray,
        cur_threshold: NumpyArray,
        learning_rate: float,
        dtype: Any,
    ) -> NumpyArray:
        """Pyribs' batch rule; at learning rate 1 the best of the batch, where that rule would take its
        mean.
        """
        if learning_rate == 1.0 and len(indices):
            best = np.full(indices.max() + 1, -np.inf, dtype)
            np.maximum.at(best, indices, objective)
            return best[indices]
        rule: Any = super()
        return np.asarray(rule._compute_thresholds(indices, objective, cur_threshold, learning_rate, dtype))

    def reseed(self, seed: Any) -> None:
        """Decide what is drawn from here on."""
        self._rng = np.random.default_rng(seed)

    def sample_elites(self, n: Any, replace: bool = True) -> Any:
        """Elites (n, ...) drawn at random, whatever order their cells were filled in."""
        source: Any = self.instead if self.empty else self  # type: ignore[attr-defined]
        if source is None or source.empty:
            raise InputError("no policy has entered the archive yet; is its threshold_min too high?")
        cells = np.sort(source.data("index"))
        _, elites = source._store.retrieve(self._rng.choice(cells, n, replace))
        return dict(elites)

    def restore(self, elites: Mapping[str, NumpyArray]) -> None:
        """Put elites, with their thresholds, back into the cells they were in."""
        self.clear()  # type: ignore[attr-defined]
        if len(elites["index"]):
            data = {name: values for name, values in elites.items() if name != "index"}
            self._store.add(elites["index"], data)  # type: ignore[attr-defined]
            self._count_again()

    def remove(self, cells: NumpyArray) -> None:
        """Empty the given cells."""
        props: Any = self._store._props  # type: ignore[attr-defined]
        left = np.setdiff1d(self._store.occupied_list, cells)  # type: ignore[attr-defined]
        props["occupied"][cells] = False
        props["occupied_list"][: len(left)] = left
        props["n_occupied"] = len(left)
        self._count_again()

    def _count_again(self) -> None:
        """Find pyribs' figures anew, from what is there."""
        self._stats_reset()  # type: ignore[attr-defined]
        if len(self._store):  # type: ignore[attr-defined]
            found = self._store.data(["index", "objective"])  # type: ignore[attr-defined]
            best = found["index"][np.argmax(found["objective"])]
            self._stats_update(found["objective"].sum(), best)  # type: ignore[attr-defined]


class _Grid(_Restorable, GridArchive):
    pass


class _CVT(_Restorable, CVTArchive):
    pass


@dataclass(frozen=True)
class Guidance:
    """What n solutions mean to the soft archive.

    Attributes:
        improvement: (n,) objective above the soft threshold of its cell as it was before; NaN where the
            judgement was not finite.
        entered: (n,) bool, above that threshold.
    """

    improvement: NumpyArray
    entered: NumpyArray


class ArchivePair:
    """Both archives, over the same cells.

    Args:
        solution_size: numbers in a solution.
        shape: grid cells along each measure.
        ranges: bounds of each measure.
        fields: what else is kept with each elite.
        qd_offset: subtracted from every objective in the QD-score.
        config: settings.
    """

    def __init__(
        self,
        solution_size: int,
        shape: tuple[int, ...],
        ranges: tuple[tuple[float, float], ...],
        fields: Fields,
        qd_offset: float,
        config: ArchiveConfig,
    ) -> None:
        config.check(len(ranges))
        self.ranges, self.qd_offset = ranges, qd_offset
        self.shape = tuple(config.shape or shape) if config.kind == "grid" else (config.cells,)
        self._settings: dict[str, Any] = {
            "solution_dim": solution_size,
            "ranges": ranges,
            "dtype": np.float32,
            "qd_score_offset": qd_offset,
            "extra_fields": {name: (shape, np.float32) for name, shape in fields.items()},
        }
        self._soft_settings: dict[str, Any] = {
            "learning_rate": config.alpha,
            "threshold_min": -np.inf if config.threshold_min is None else config.threshold_min,
        }
        self.soft: _Grid | _CVT
        self.result: _Grid | _CVT
        self.centroids: NumpyArray | None = None
        if config.kind == "grid":
            self.soft = _Grid(dims=self.shape, **self._soft_settings, **self._settings)
            self.result = _Grid(dims=self.shape, **self._settings)
        else:
            self._around(config.cells)
        self.soft.instead = self.result
        self.judged = np.zeros(self.cells, np.int64)
        """By how many episodes the elite of each cell was judged."""

    def _around(self, centroids: int | NumpyArray) -> None:
        """Empty archives around centroids (cells, k), or around that many, spread evenly."""
        self.soft = _CVT(centroids=centroids, seed=0, **self._soft_settings, **self._settings)
        self.centroids = self.soft.centroids
        self.result = _CVT(centroids=self.centroids, **self._settings)

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return int(self.result.cells)

    def guide(
        self, solution: NumpyArray, objective: NumpyArray, measures: NumpyArray, **fields: NumpyArray
    ) -> Guidance:
        """Offer n solutions to the soft archive; those of which anything is not finite are turned away."""
        finite = _finite(solution, objective, measures, **fields)
        improvement = np.full(len(objective), np.nan, np.float32)
        entered = np.zeros(len(objective), bool)
        if finite.any():
            rows = {"solution": solution, "objective": objective, "measures": measures, **fields}
            soft = self.soft.add(**{name: values[finite] for name, values in rows.items()})
            improvement[finite] = soft["value"]
            entered[finite] = soft["status"] > 0
        return Guidance(improvement, entered)

    def promising(self, objective: NumpyArray, measures: NumpyArray) -> NumpyArray:
        """Which (n,) would become elites: better than what their cell holds, and the best of those that share
        one.
        """
        finite = np.isfinite(objective) & np.isfinite(measures).all(axis=1)
        chosen = np.zeros(len(objective), bool)
        if finite.any():
            rows = np.flatnonzero(finite)
            occupied, elites = self.result.retrieve(measures[rows])
            better = rows[~occupied | (objective[rows] > elites["objective"])]
            order = better[np.argsort(-objective[better], kind="stable")]
            if len(order):
                _, firsts = np.unique(self.result.index_of(measures[order]), return_index=True)
                chosen[order[firsts]] = True
        return chosen

    def keep(
        self,
        solution: NumpyArray,
        objective: NumpyArray,
        measures: NumpyArray,
        episodes: int | NumpyArray = 1,
        **fields: NumpyArray,
    ) -> NumpyArray:
        """Offer n solutions to the elitist archive; which (n,) are elites of it now.

        `episodes` is by how many they were judged: one number for all, or (n,).
        """
        finite = _finite(solution, objective, measures, **fields)
        best = self.promising(np.where(finite, objective, np.nan), measures)
        if best.any():
            rows = {"solution": solution, "objective": objective, "measures": measures, **fields}
            self.result.add(**{name: values[best] for name, values in rows.items()})
            by = np.broadcast_to(episodes, len(best))
            self.judged[self.result.index_of(measures[best])] = by[best]
        return best

    def doubtful(self, n: int) -> NumpyArray:
        """Cells, n at most, whose elites were judged by the fewest episodes."""
        cells = np.sort(self.result.data("index"))
        return np.asarray(cells[np.argsort(self.judged[cells], kind="stable")[:n]])

    def correct(
        self, cells: NumpyArray, objective: NumpyArray, measures: NumpyArray, episodes: int
    ) -> NumpyArray:
        """Take in another judgement of the elites of n cells, by so many episodes each.

        They go where they are by the mean of all their episodes; where two meet, the better one stays. One
        whose judgement is not finite leaves.

        Returns:
            Which (n,) left their cell.
        """
        elites = elites_of(self.result, cells)
        for name in ("index", "threshold"):
            del elites[name]
        by = self.judged[cells] + episodes
        share = (episodes / by).astype(np.float32)
        elites["objective"] += share * (objective - elites["objective"])
        elites["measures"] += share[:, None] * (measures - elites["measures"])
        self.result.remove(cells)
        self.keep(**elites, episodes=by)
        finite = np.isfinite(elites["objective"]) & np.isfinite(elites["measures"]).all(axis=1)
        there = self.result.index_of(np.where(finite[:, None], elites["measures"], 0))
        return np.asarray(~finite | (there != cells))

    def add(
        self,
        solution: NumpyArray,
        objective: NumpyArray,
        measures: NumpyArray,
        episodes: int | NumpyArray = 1,
        **fields: NumpyArray,
    ) -> Guidance:
        """Offer n solutions, judged by so many episodes, to both archives."""
        self.keep(solution, objective, measures, episodes, **fields)
        return self.guide(solution, objective, measures, **fields)

    def random_elite(
        self, draws: np.random.Generator, sparse: bool = False, good: bool = False
    ) -> dict[str, NumpyArray]:
        """An elite with all its fields: every filled cell as likely, or by how many empty neighbours it has.

        Of the elitist archive: the soft one holds whatever exceeded its threshold last.
        """
        elites = self.random_elites(draws, 1, sparse, good)
        return {name: values[0] for name, values in elites.items()}

    def best_elite(self) -> dict[str, NumpyArray]:
        """The elite with the highest objective, with all its fields."""
        found = self.result.data(["index", "objective"])
        cell = found["index"][np.argmax(found["objective"])]
        return {name: values[0] for name, values in elites_of(self.result, np.array([cell])).items()}

    def random_elites(
        self, draws: np.random.Generator, n: int, sparse: bool = False, good: bool = False
    ) -> dict[str, NumpyArray]:
        """So many of them (n, ...), drawn with replacement.

        Args:
            draws: by which they are drawn.
            n: how many.
            sparse: those with empty neighbours are more likely.
            good: those that are better than many others are.
        """
        cells = np.sort(self.result.data("index"))
        if not len(cells):
            raise InputError("the archive is empty.")
        chances = np.ones(len(cells))
        if sparse:
            chances *= self.empty_neighbours(cells) + 1e-3  # all full: all alike
        if good:
            objective = elites_of(self.result, cells)["objective"]
            chances *= (rankdata(objective) / len(cells)) ** GOOD
        share = chances / chances.sum() if sparse or good else None
        return elites_of(self.result, draws.choice(cells, n, p=share))

    def empty_neighbours(self, cells: NumpyArray) -> NumpyArray:
        """How many of the cells around each (n,) the elitist archive has not filled.

        Around a grid's cell: those that touch it, corners too. Of a CVT: the eight nearest centroids.
        """
        filled = np.zeros(self.cells, bool)
        filled[self.result.data("index")] = True
        if self.centroids is not None:
            low, high = np.array(self.ranges).T
            places = (self.centroids - low) / (high - low)
            apart = np.linalg.norm(places[cells][:, None] - places[None], axis=2)
            nearest = np.argsort(apart, axis=1)[:, 1:9]
            return np.asarray((~filled[nearest]).sum(axis=1))
        empty = np.pad(~filled.reshape(self.shape), 1)  # beyond the border nothing is empty
        windows = np.lib.stride_tricks.sliding_window_view(empty, (3,) * len(self.shape))
        around = windows.sum(axis=tuple(range(len(self.shape), 2 * len(self.shape))))
        return np.asarray(around.ravel()[cells] - ~filled[cells])

    def figures(self) -> dict[str, float]:
        """QD-score, coverage, best and mean of the elitist archive, summed in float64."""
        objective = self.result.data("objective").astype(np.float64)
        objective = np.sort(objective)  # the same sum, whatever order the cells were filled in
        if not len(objective):
            return {"qd_score": 0.0, "coverage": 0.0, "best": float("nan"), "mean": float("nan"), "elites": 0}
        return {
            "qd_score": float((objective - self.qd_offset).sum()),
            "coverage": len(objective) / self.cells,
            "best": float(objective[-1]),
            "mean": float(objective.mean()),
            "elites": len(objective),
        }

    def state(self) -> dict[str, NumpyArray]:
        """Occupied cells of both archives, as plain arrays; and where they are, which is found by chance."""
        centroids = {} if self.centroids is None else {"centroids": self.centroids}
        return (
            {"judged": self.judged}
            | centroids
            | {
                f"{which}/{name}": values
                for which, archive in (("soft", self.soft), ("result", self.result))
                for name, values in elites_of(archive).items()
            }
        )

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Go on from a `state()`, or raise an InputError that says why it cannot be one of this archive."""
        self._check_state(state)
        self.judged = np.array(state["judged"])
        if self.centroids is not None:
            self._around(state["centroids"])
            self.soft.instead = self.result
        for which, archive in (("soft", self.soft), ("result", self.result)):
            prefix = f"{which}/"
            archive.restore(
                {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
            )

    def _check_state(self, state: Mapping[str, NumpyArray]) -> None:
        expected: dict[str, Like] = {"judged": like(self.judged)}
        if self.centroids is not None:
            expected["centroids"] = like(self.centroids)
        for which, archive in (("soft", self.soft), ("result", self.result)):
            n = np.size(state.get(f"{which}/index", ()))
            for name, values in elites_of(archive, np.zeros(0, np.int32)).items():
                expected[f"{which}/{name}"] = values.dtype, (n, *values.shape[1:])
        check_arrays(state, expected)
        for name, values in state.items():
            if not np.isfinite(values).all():
                raise InputError(f"the array {name!r} has values that are not finite.")
        for index in (state["soft/index"], state["result/index"]):
            if len(index) and not (
                0 <= index[0] <= index[-1] < self.cells and (index[1:] > index[:-1]).all()
            ):
                raise InputError(f"its elites are not in different cells below {self.cells}, in order.")
        if (state["judged"] < 0).any():
            raise InputError("its elites were evaluated in fewer than 0 episodes.")


def elites_of(archive: GridArchive | CVTArchive, cells: NumpyArray | None = None) -> dict[str, NumpyArray]:
    """All fields of the elites in the given cells, or in all occupied ones in the order of their index."""
    indices = np.sort(archive.data("index")) if cells is None else cells
    found: Any = archive._store.retrieve(indices)
    elites: dict[str, NumpyArray] = found[1]
    return {name: np.ascontiguousarray(values) for name, values in elites.items()}


def _finite(solution: NumpyArray, objective: NumpyArray, measures: NumpyArray, **fields: Any) -> NumpyArray:
    """Which (n,) rows hold numbers only, also of what is kept with them."""
    n = len(objective)
    found = [
        np.isfinite(values).reshape(n, -1).all(axis=1)
        for values in (solution, objective, measures, *map(np.asarray, fields.values()))
    ]
    return np.asarray(np.all(found, axis=0))
