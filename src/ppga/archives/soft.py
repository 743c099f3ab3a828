"""The soft archive of CMA-MAE: acceptance thresholds that follow what enters a cell.

Fontaine & Nikolaidis, "Covariance matrix adaptation MAP-annealing" (GECCO 2023). A candidate enters if its
objective exceeds its cell's threshold t, and its improvement is the difference. Then t moves toward the mean
of what has entered: n entries of mean f give (1 - alpha)^n t + (1 - (1 - alpha)^n) f.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ribs.archives import ArchiveBase

from ppga.archives.elites import ArchiveConfig, EliteArchive, check_cells
from ppga.config import check_range, common
from ppga.errors import InputError
from ppga.storage import NumpyArray, check_arrays, finite_rows


@dataclass(frozen=True)
class SoftArchiveConfig(ArchiveConfig):
    """The cells of the archive, and the thresholds of the soft archive that steers the search.

    Attributes:
        alpha: archive learning rate: an entry moves the threshold of its cell this far toward its objective;
            1 keeps the best.
        threshold_min: threshold of an empty cell.
        restart_from: what PPGA and TD3GA restart at: elites, or entries of the soft archive (the policy that
            entered a cell last, which may be worse than its elite). pyribs' emitters restart at entries.
    """

    alpha: float = common(0.3)
    threshold_min: float | None = 0.0
    restart_from: Literal["elites", "entries"] = "elites"

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work with that many measures."""
        super().check(measures)
        check_range("archive.alpha", self.alpha, 0.0, 1.0)
        if self.alpha < 1 and self.threshold_min is None:
            raise InputError(
                f"--archive.alpha {self.alpha}, below 1, needs an --archive.threshold-min to start from."
            )
        if self.threshold_min is not None and not np.isfinite(self.threshold_min):
            raise InputError(f"--archive.threshold-min must be finite, or none, got {self.threshold_min}.")


@dataclass(frozen=True)
class SoftAddition:
    """Result of adding n candidates to the soft archive.

    Attributes:
        improvement: (n,) objective minus the cell's threshold before the addition; NaN for candidates that
            are not finite.
        entered: (n,) bool, above that threshold.
    """

    improvement: NumpyArray
    entered: NumpyArray


class SoftArchive:
    """Thresholds of all cells and, if restarts need them, what entered each cell last.

    Args:
        elites: the elitist archive over the same cells; restarts are drawn from it while nothing has entered.
        config: settings.

    Attributes:
        entries: name -> (cells, ...) of what entered last; empty if it is not stored.
    """

    def __init__(self, elites: EliteArchive, config: SoftArchiveConfig) -> None:
        self.elites, self.alpha, self.threshold_min = elites, config.alpha, config.threshold_min
        start = -np.inf if config.threshold_min is None else config.threshold_min
        self.thresholds = np.full(elites.cells, start, np.float32)
        self.entered = np.zeros(elites.cells, bool)
        names = self.stored_names(config, elites.fields)
        self.entries = {name: np.zeros_like(elites.values(name)) for name in names}

    @staticmethod
    def stored_names(config: SoftArchiveConfig, fields: Iterable[str]) -> tuple[str, ...]:
        """Names of what it stores in each cell, besides the threshold."""
        return ("solution", *fields) if config.restart_from == "entries" else ()

    def add(
        self,
        solution: NumpyArray,
        objective: NumpyArray,
        measures: NumpyArray,
        fields: Mapping[str, NumpyArray] | None = None,
    ) -> SoftAddition:
        """Add candidates; the best one that enters a cell is stored.

        Args:
            solution: (n, d).
            objective: (n,).
            measures: (n, k).
            fields: what restarts need besides the solution, (...) of all candidates or (n, ...).
        """
        n = len(objective)
        addition = SoftAddition(np.full(n, np.nan, np.float32), np.zeros(n, bool))
        rows = np.flatnonzero(finite_rows((solution, objective, measures)))
        if not len(rows):
            return addition
        objective = np.asarray(objective, np.float32)[rows]
        cells = self.elites.index_of(measures[rows])
        thresholds = self.thresholds[cells]
        enters = objective > thresholds
        addition.entered[rows] = enters
        # without a least threshold, the improvement in an empty cell is the objective itself, as in CMA-ME
        addition.improvement[rows] = objective - np.where(
            np.isfinite(thresholds), thresholds, np.float32(0.0)
        )
        if enters.any():
            self._update_thresholds(cells[enters], objective[enters])
            order = np.argsort(-objective[enters], kind="stable")
            first_cells, first = np.unique(cells[enters][order], return_index=True)
            best, given = rows[enters][order][first], {"solution": solution, **(fields or {})}
            for name, values in self.entries.items():
                values[first_cells] = np.broadcast_to(given[name], (n, *values.shape[1:]))[best]
        return addition

    @property
    def restart_archive(self) -> "EliteArchive | SoftArchive":
        """The archive to draw restarts from: the elitist one, or this one if it stores what entered."""
        return self if self.entries else self.elites

    def __len__(self) -> int:
        """Number of cells that something has entered."""
        return int(self.entered.sum())

    def sample(self, rng: np.random.Generator, n: int) -> dict[str, NumpyArray]:
        """What entered cells last, (n, ...) each, drawn with replacement; all cells are equally likely."""
        if not len(self):
            return self.elites.sample(rng, n)
        cells = rng.choice(np.flatnonzero(self.entered), n)
        return {name: values[cells] for name, values in self.entries.items()}

    def _update_thresholds(self, cells: NumpyArray, objective: NumpyArray) -> None:
        """Move the thresholds of cells (n,) that candidates with these objectives (n,) enter."""
        entries = np.bincount(cells, minlength=len(self.thresholds))
        changed = np.flatnonzero(entries)
        if self.alpha == 1.0:
            np.maximum.at(self.thresholds, cells, objective)  # pyribs would take the mean of a batch
        else:
            sums = np.zeros_like(self.thresholds)
            np.add.at(sums, cells, objective)
            kept = np.float32(1.0 - self.alpha).astype(np.float64) ** entries[changed]
            mean = sums[changed] / entries[changed]
            self.thresholds[changed] = kept * self.thresholds[changed] + (1 - kept) * mean
        self.entered[changed] = True

    @classmethod
    def numbers_per_cell(
        cls, config: SoftArchiveConfig, solution_size: int, fields: Mapping[str, tuple[int, ...]]
    ) -> int:
        """Numbers that it stores for each cell, besides the elites: the threshold, and what entered last."""
        shapes = {"solution": (solution_size,), **fields}
        return 1 + sum(math.prod(shapes[name]) for name in cls.stored_names(config, fields))

    def state(self) -> dict[str, NumpyArray]:
        """Thresholds and entries of the cells that something has entered."""
        cells = np.flatnonzero(self.entered)
        entries = {name: values[cells] for name, values in self.entries.items()}
        return {"index": cells.astype(np.int32), "threshold": self.thresholds[cells], **entries}

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`.

        Raises:
            InputError: it cannot be the state of such an archive.
        """
        n = np.size(state.get("index", ()))
        fresh = self.state().items()
        check_arrays(state, {name: (values.dtype, (n, *values.shape[1:])) for name, values in fresh})
        check_cells(state["index"], len(self.thresholds))
        for name, values in state.items():
            if not np.isfinite(values).all():
                raise InputError(f"the array {name!r} has values that are not finite.")
        self.thresholds[:] = -np.inf if self.threshold_min is None else self.threshold_min
        self.thresholds[state["index"]] = state["threshold"]
        self.entered[:] = False
        self.entered[state["index"]] = True
        for name, values in self.entries.items():
            values[state["index"]] = state[name]


class RibsSoftArchive(SoftArchive, ArchiveBase):  # type: ignore[misc]  # its `add` returns a dictionary
    """A soft archive that always stores the solutions that entered last, and that pyribs' emitters can use.

    Args:
        elites: the elitist archive over the same cells; restarts are drawn from it while nothing has entered.
        config: settings.
    """

    def __init__(self, elites: EliteArchive, config: SoftArchiveConfig) -> None:
        SoftArchive.__init__(self, elites, config)
        self.solutions = self.entries["solution"]
        ArchiveBase.__init__(
            self, solution_dim=self.solutions.shape[1], objective_dim=(), measure_dim=len(elites.ranges)
        )
        self._generator = np.random.default_rng(0)

    @staticmethod
    def stored_names(config: SoftArchiveConfig, fields: Iterable[str]) -> tuple[str, ...]:  # noqa: ARG004
        """The solutions only."""
        return ("solution",)

    @property
    def dtypes(self) -> dict[str, Any]:
        """Data types of the fields that emitters handle."""
        return {name: np.dtype(np.float32) for name in ("solution", "objective", "measures")}

    @property
    def field_list(self) -> list[str]:
        """Names of these fields."""
        return list(self.dtypes)

    @property
    def empty(self) -> bool:
        """Whether nothing has entered."""
        return not self.entered.any()

    def reseed(self, entropy: list[int]) -> None:
        """Seed the draws of `sample_elites`."""
        self._generator = np.random.default_rng(entropy)

    def sample_elites(self, n: Any, replace: bool = True) -> Any:
        """Solutions (n, d) drawn at random, each occupied cell equally likely."""
        if self.empty and self.elites.empty:
            raise InputError("no policy has entered the archive yet; is its threshold_min too high?")
        cells = self.elites.occupied if self.empty else np.flatnonzero(self.entered)
        source = self.elites.solutions if self.empty else self.solutions
        return {"solution": source[self._generator.choice(cells.astype(np.int32), n, replace)]}
