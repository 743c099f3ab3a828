"""Archives as files: one safetensors file whose header describes it; read without JAX, and without pickle.

`docs/file-formats.md` lists every field.
"""

import math
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from ribs.archives import CVTArchive, GridArchive

from ppga import machine
from ppga.archives import shipped
from ppga.errors import InputError, import_extra, told
from ppga.limits import LARGEST, LONGEST_EPISODE, LONGEST_NAME, MOST_AXES, MOST_CELLS
from ppga.networks import Network
from ppga.storage import NumpyArray, parts, read_tensors, write_tensors

if TYPE_CHECKING:
    import pandas

FORMAT, PLAIN, HALF = "ppga archive", 1, 2
"""Versions of the format: all in single precision; solutions in half precision."""
PLACES = ("archive/archive.safetensors", "archive.safetensors")
"""Where `load_archive` looks in a folder: that of a run, or the archive's own."""
ARCHIVED, CORRECTED = WHICH = ("archived", "corrected")
"""What a run has: its archive as trained, and as judged again by `ppga evaluate`."""
MAIN_FIELDS = ("index", "solution", "objective", "measures")
NEEDED = (
    "solution", "objective", "measures", "log_std", "observation_mean", "observation_variance",
    "observation_count",
)  # fmt: skip
"""Of an elite, what it cannot be run without; if others of its archive have it."""
LEARNER_FIELDS = ("critics", "log_temperature", "hyper")
"""What a learner keeps with an elite that is as large as the policy itself, and no use to whoever runs it."""
Cell = int | Sequence[int]
"""A cell's number, or its place along each measure of a grid."""


@dataclass(frozen=True)
class Archive:
    """Elites, and all that is needed to run them.

    Attributes:
        description: task, network, cells, ranges, offset and how it was made; JSON.
        elites: name -> array with one row an elite, sorted by cell: index, solution (d), objective, measures
            (k), and for policies log_std, observation_mean, observation_variance, observation_count,
            returns_mean, returns_covariance, returns_count.
        centroids: (cells, k) of a CVT archive.
    """

    description: dict[str, Any]
    elites: Mapping[str, NumpyArray]
    centroids: NumpyArray | None = None

    # What it holds.

    def __len__(self) -> int:
        return len(self.elites["index"])

    @property
    def cells(self) -> int:
        """How many cells there are, filled or empty."""
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
        """What the measures are called."""
        return tuple(self.description["measure_names"])

    @property
    def qd_offset(self) -> float:
        """What is subtracted from every objective in the QD-score."""
        return float(self.description["qd_offset"])

    @property
    def qd_score(self) -> float:
        """Sum over the elites of objective minus offset."""
        return float((self.elites["objective"].astype(np.float64) - self.qd_offset).sum())

    @property
    def coverage(self) -> float:
        """Share of the cells that are filled."""
        return len(self) / self.cells

    def best(self) -> int:
        """Cell of the elite with the highest objective."""
        self._not_empty()
        return int(self.elites["index"][np.argmax(self.elites["objective"])])

    def nearest(self, measures: Sequence[float] | NumpyArray) -> int:
        """Cell of the elite nearest to the measures (k,), each in units of its range."""
        self._not_empty()
        wanted = np.asarray(measures, np.float64)
        if wanted.shape != (len(self.ranges),) or not np.isfinite(wanted).all():
            raise InputError(f"expected {len(self.ranges)} finite measures, got {measures!r}.")
        low, high = np.array(self.ranges).T
        distance = np.square((self.elites["measures"] - wanted) / (high - low)).sum(axis=1)
        return int(self.elites["index"][np.argmin(distance)])

    def elite(self, cell: Cell) -> dict[str, NumpyArray]:
        """All fields of the elite in a cell."""
        row = self._row(cell)
        return {name: values[row] for name, values in self.elites.items()}

    def policy(self, cell: Cell) -> Callable[[NumpyArray], NumpyArray]:
        """The elite of a cell as a function from observations (..., o) to actions (..., a) in [-1, 1].

        Example:
            >>> archive = load_archive("runs/halfcheetah")  # doctest: +SKIP
            >>> act = archive.policy(archive.nearest([0.2, 0.8]))  # doctest: +SKIP
            >>> action = act(observation)  # doctest: +SKIP
        """
        if self.description.get("network") is None:
            raise InputError(f"the solutions of {self.description['task']['name']} are not policies.")
        network = Network.of(self.description["network"])
        clip = float(self.description["network"]["observation_clip"])
        elite = self.elite(cell)
        parameters = elite["solution"]
        mean, spread = elite["observation_mean"], np.sqrt(elite["observation_variance"] + 1e-8)

        def act(observation: NumpyArray) -> NumpyArray:
            seen = np.clip((np.asarray(observation, np.float32) - mean) / spread, -clip, clip)
            return np.asarray(np.clip(network(parameters, seen), -1.0, 1.0))

        return act

    def agent(self, cell: Cell) -> "Agent":
        """The elite of a cell as what drives a Gymnasium environment: `agent.predict(observation)`.

        Example:
            >>> env = gymnasium.make("HalfCheetah-v5")  # doctest: +SKIP
            >>> action, _ = archive.agent(archive.best()).predict(env.reset()[0])  # doctest: +SKIP
        """
        return Agent(self.policy(cell), np.array(self.description["task"]["control_range"], np.float32))

    def only(self, *cells: Cell) -> "Archive":
        """The same with no elites but those of the given cells: to save a single policy, say."""
        rows = sorted({self._row(cell) for cell in cells})
        chosen = {name: values[rows] for name, values in self.elites.items()}
        return Archive(self.description, chosen, self.centroids)

    def on_grid(self, shape: Sequence[int]) -> "Archive":
        """The same elites in a grid of other cells, where their measures say; of those in one cell, the best.

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
        """The same without what learners keep with their policies, where that is large."""
        kept = {name: values for name, values in self.elites.items() if name not in LEARNER_FIELDS}
        return Archive(self.description, kept, self.centroids)

    def to_pandas(self, whole: bool = False) -> "pandas.DataFrame":
        """A row an elite: its cell, objective and measures.

        Args:
            whole: with solutions and all else that is a number or a row of them, in pyribs' columns
                (solution_0, ..., measures_0, ...), for `from_pandas`.
        """
        import pandas

        if whole:
            parts = {}
            for name, values in self.elites.items():
                if values.ndim == 1:
                    parts[name] = np.asarray(values)
                elif values.ndim == 2:
                    parts |= dict(zip(_columns(name, values), np.asarray(values).T, strict=True))
            return pandas.DataFrame(parts)
        columns = {"index": self.elites["index"], "objective": self.elites["objective"]}
        for number, name in enumerate(self.measure_names):
            columns[name] = self.elites["measures"][:, number]
        return pandas.DataFrame(columns)

    def to_ribs(self) -> GridArchive | CVTArchive:
        """A plain pyribs archive with the same elites and fields.

        Raises:
            InputError: pyribs keeps room for an elite in every cell, and there is less memory than that.
        """
        extra = {
            name: (values.shape[1:], values.dtype)
            for name, values in self.elites.items()
            if name not in MAIN_FIELDS
        }
        archive = self._empty_ribs(self.elites["solution"].shape[1], extra)
        if len(self):
            archive.add(**{name: values for name, values in self.elites.items() if name != "index"})
        return archive

    def to_qdax(self) -> Any:
        """QDax' `MapElitesRepertoire` with the same elites, in the order of QDax' own grid (needs qdax).

        Genotypes are the flat solutions (d); what else is kept with elites comes as extra scores.
        """
        qdax = import_extra("qdax.core.containers.mapelites_repertoire", "qdax")
        self._not_empty()
        main = {name: np.asarray(self.elites[name]) for name in MAIN_FIELDS}
        extra = {name: np.asarray(values) for name, values in self.elites.items() if name not in MAIN_FIELDS}
        if self.centroids is None:
            low, high = np.array(self.ranges).T
            centroids = np.asarray(qdax.compute_euclidean_centroids(self.shape, list(low), list(high)))
            place = np.stack(np.unravel_index(main["index"], self.shape), axis=1)
            middles = low + (place + 0.5) / np.array(self.shape) * (high - low)
        else:
            centroids, middles = self.centroids, self.centroids[main["index"]]
        # placed by the middles of their cells: who is measured on a border could be counted to another cell
        middles = middles.astype(np.float32)
        made = qdax.MapElitesRepertoire.init(
            main["solution"], main["objective"][:, None], middles, centroids,
            extra_scores=extra, keys_extra_scores=tuple(extra),
        )  # fmt: skip
        cells = np.asarray(qdax.get_cells_indices(middles, centroids))
        return made.replace(descriptors=made.descriptors.at[cells].set(main["measures"]))

    def filled(self, rows: Mapping[str, NumpyArray]) -> "Archive":
        """The same archive with other elites: of those that land in one cell, the best.

        Args:
            rows: name -> array with one row an elite: what this archive's have, but for index; and without
                what is only needed to learn on from them, if need be.
        """
        missing = sorted({*self.elites} & {*NEEDED} - {*rows})
        if missing:
            raise InputError(f"elites of this archive have {', '.join(missing)}, and these have not.")
        objective = np.asarray(rows["objective"])
        if not len(objective):
            raise InputError("there are no elites to fill it with: the other archive is empty.")
        for name, values in self.elites.items():
            if name == "index" or name not in rows:
                continue
            given, wanted = np.asarray(rows[name]), (len(objective), *values.shape[1:])
            if given.shape != wanted or given.dtype.kind not in "fiu":
                raise InputError(f"{name}: expected numbers {wanted}, got {given.dtype} {given.shape}.")
            if not np.isfinite(given).all():
                raise InputError(f"{name} has values that are not finite.")
        cells = self.cells_of(np.asarray(rows["measures"]))
        chosen = best_of_each(cells, objective)
        elites = {
            name: np.asarray(rows[name])[chosen].reshape(-1, *values.shape[1:]).astype(values.dtype)
            for name, values in self.elites.items()
            if name != "index" and name in rows
        }
        elites["index"] = cells[chosen].astype(np.int32)
        made = Archive(self.description, elites, self.centroids)
        _check(made, Path("these elites"))
        return made

    def from_ribs(self, archive: Any) -> "Archive":
        """The same archive with the elites of a pyribs archive, which has the fields that `to_ribs` gives."""
        return self.filled({name: np.asarray(values) for name, values in archive.data().items()})

    def from_pandas(self, frame: "pandas.DataFrame") -> "Archive":
        """The same archive with the elites of a data frame as pyribs makes them: objective, solution_0,
        solution_1, ..., measures_0, ....
        """
        rows = {}
        for name, values in self.elites.items():
            columns = [name] if values.ndim == 1 else _columns(name, values)
            if values.ndim <= 2 and set(columns) <= set(frame.columns):
                rows[name] = frame[columns].to_numpy().reshape(len(frame), *values.shape[1:])
        return self.filled(rows)

    def cells_of(self, measures: NumpyArray) -> NumpyArray:
        """Cells (n,) that measures (n, k) fall into; beyond the ranges, the outermost."""
        if self.centroids is None:  # far beyond, pyribs' whole numbers would overflow
            measures = np.clip(measures, *np.array(self.ranges).T)
        return np.asarray(self._empty_ribs(1, {}).index_of(measures))

    def _empty_ribs(self, solution_size: int, extra: dict[str, Any]) -> GridArchive | CVTArchive:
        numbers = solution_size + len(self.ranges) + 4 + sum(math.prod(shape) for shape, _ in extra.values())
        if 4 * numbers * self.cells > machine.free_memory():
            raise InputError(
                f"a pyribs archive of {self.cells:,} cells, each of {numbers:,} numbers, takes more memory "
                "than is free."
            )
        settings: dict[str, Any] = {
            "solution_dim": solution_size,
            "ranges": self.ranges,
            "qd_score_offset": self.qd_offset,
            "dtype": np.float32,
            "extra_fields": extra,
        }
        if self.centroids is None:
            return GridArchive(dims=self.shape, **settings)
        return CVTArchive(centroids=self.centroids, **settings)

    def save(self, path: Path, *, half: bool = False) -> None:
        """Write the file, in place of what was there.

        Args:
            path: the file.
            half: solutions in half precision (float16), which takes half the room.
        """
        arrays = {f"elites/{name}": values for name, values in self.elites.items()}
        if half:
            arrays["elites/solution"] = _halved(arrays["elites/solution"])
        if self.centroids is not None:
            arrays["centroids"] = self.centroids
        form = {"format": FORMAT, "version": HALF if half else PLAIN}
        write_tensors(path, arrays, form | self.description | form)

    def _not_empty(self) -> None:
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
    """A policy with the method that Gymnasium's users know from Stable-Baselines3.

    Attributes:
        policy: observations (..., o) to actions (..., a) in [-1, 1].
        control_range: (a, 2) what the actuators take.
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
        """Controls (..., a) for observations (..., o), in the actuators' range; and the state, as it was."""
        low, high = self.control_range.T
        return low + (self.policy(np.asarray(observation)) + 1) / 2 * (high - low), state


def _columns(name: str, values: NumpyArray) -> list[str]:
    """What pyribs calls the columns of a field (n, d)."""
    return [f"{name}_{number}" for number in range(values.shape[1])]


def _halved(solutions: NumpyArray) -> NumpyArray:
    """Solutions in half precision, or an InputError if one has a number that is too large for it."""
    with np.errstate(over="ignore"):
        halves = np.asarray(solutions).astype(np.float16)
    if not np.isfinite(halves).all():
        raise InputError(f"solutions beyond {np.finfo(np.float16).max} do not fit half precision.")
    return halves


def best_of_each(cells: NumpyArray, objective: NumpyArray) -> NumpyArray:
    """Rows of the best in each cell, by cell; who is in none (-1) is left out."""
    order = np.lexsort((-objective, cells))  # by cell, and within a cell the best first
    order = order[cells[order] >= 0]
    _, firsts = np.unique(cells[order], return_index=True)
    return np.asarray(order[firsts])


def find_archive(path: str | os.PathLike[str]) -> Path:
    """The archive's file in a run's folder, in an archive's folder, itself, or that of `pretrained:NAME`."""
    given = shipped.shipped(path) or Path(path)
    found = [given] if given.is_file() else [given / place for place in PLACES if (given / place).is_file()]
    if not found:
        raise InputError(f"no archive in {given}: looked for {' and '.join(PLACES)}.")
    return found[0]


def load_archive(path: str | os.PathLike[str], *, mapped: bool = False) -> Archive:
    """Read an archive.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        mapped: leave the elites on disk, to be read when used; for archives larger than memory. What is in
            half precision is read at once all the same: in memory, all is in single precision.

    Raises:
        InputError: there is none, or it is damaged.
    """
    file = find_archive(path)
    arrays, description = read_tensors(file, mapped)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InputError(f"{file} is not an archive.")
    if description.get("version") not in (PLAIN, HALF):
        raise InputError(
            f"{file} has archive format {description.get('version')!r}; this ppga reads {PLAIN} and {HALF}."
        )
    elites = {
        name.removeprefix("elites/"): values.astype(np.float32) if values.dtype == np.float16 else values
        for name, values in arrays.items()
        if name.startswith("elites/")
    }
    archive = Archive(description, elites, arrays.get("centroids"))
    _check(archive, file)
    return archive


@overload
def pretrained() -> tuple[str, ...]: ...


@overload
def pretrained(name: str) -> Archive: ...


def pretrained(name: str | None = None) -> tuple[str, ...] | Archive:
    """An archive that comes with the package; without a name, the names of all that there are.

    Example:
        >>> archive = pretrained("walker2d")  # doctest: +SKIP
        >>> act = archive.policy(archive.best())  # doctest: +SKIP

    Raises:
        InputError: there is none of that name.
    """
    return shipped.names() if name is None else load_archive(f"{shipped.PREFIX}{name}")


def check_shape(shape: Sequence[int]) -> None:
    """Raise an InputError unless there can be an archive with so many cells along each measure."""
    few = len(shape) <= MOST_AXES and max(shape) <= MOST_CELLS
    if not few or math.prod(shape) > MOST_CELLS:
        raise InputError(
            f"a grid has at most {MOST_AXES} measures, an archive at most {MOST_CELLS:,} cells; got "
            f"{reprlib.repr(tuple(shape))}."
        )


def _check(archive: Archive, file: Path) -> None:
    """Refuse what would fail later and less clearly."""
    elites, policies = archive.elites, archive.description.get("network") is not None
    missing = {*MAIN_FIELDS, *(NEEDED if policies else ())} - {*elites}
    if missing:
        raise InputError(f"{file} is not a whole archive: it has no {', '.join(sorted(missing))}.")
    flat = [name for name, values in elites.items() if not values.ndim]
    if flat:
        raise InputError(f"{file}: {flat[0]} is not a column of an archive.")
    index = elites["index"]
    n = len(index)
    for name, values in elites.items():
        if len(values) != n:
            raise InputError(f"{file}: {name} has {len(values)} rows where index has {n}.")
    try:
        _check_description(archive)
        columns = _columns_of(archive)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: its description is not whole ({told(error)}).") from None
    wrong = [
        name
        for name, (kinds, shape) in columns.items()
        if name in elites and (elites[name].dtype.kind not in kinds or elites[name].shape != (n, *shape))
    ]
    if wrong:
        raise InputError(f"{file}: {', '.join(wrong)} do not fit its description.")
    if n and not (0 <= index[0] and index[-1] < archive.cells and (index[1:] > index[:-1]).all()):
        raise InputError(f"{file}: its cells are not distinct numbers below {archive.cells}, in order.")
    for name, values in elites.items():
        if values.dtype.kind == "f" and not all((np.abs(part) <= LARGEST).all() for part in parts(values)):
            raise InputError(f"{file}: {name} has values that are not finite in single precision.")
    for name, most in (
        ("episodes", 2**31 - 1),
        ("observation_variance", LARGEST),
        ("observation_count", LARGEST),
    ):
        if name in elites and not all(((part >= 0) & (part <= most)).all() for part in parts(elites[name])):
            raise InputError(f"{file}: {name} has values outside of [0, {most:g}].")


def _columns_of(archive: Archive) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Kinds of numbers, and shape of a row, of those fields of elites that are computed with."""
    columns: dict[str, tuple[str, tuple[int, ...]]] = {
        "index": ("iu", ()),
        "episodes": ("iu", ()),
        "objective": ("f", ()),
        "measures": ("f", (len(archive.ranges),)),
        "solution": ("f", archive.elites["solution"].shape[1:2]),
    }
    if archive.description.get("network") is not None:
        network = Network.of(archive.description["network"])
        inputs = network.sizes[0]
        columns |= {
            "solution": ("f", (network.parameters,)),
            "log_std": ("f", (network.outputs,)),
            "observation_mean": ("f", (inputs,)),
            "observation_variance": ("f", (inputs,)),
            "observation_count": ("f", ()),
        }
    return columns


def _check_description(archive: Archive) -> None:
    """Raise a ValueError that names what is not as it should be, or whatever else comes of reading it."""
    description, shape, centroids = archive.description, archive.shape, archive.centroids
    for name in (description["task"]["name"], *archive.measure_names):
        if not (isinstance(name, str) and len(name) <= LONGEST_NAME):
            raise ValueError(f"a name is not a text of at most {LONGEST_NAME} characters")
    for key, kind in (("algorithm", str), ("seed", int), ("iteration", int)):
        if type(description.get(key)) not in (kind, type(None)):
            raise ValueError(key)
    if not abs(archive.qd_offset) <= LARGEST:
        raise ValueError("qd_offset")
    if not all(type(size) is int and size >= 1 for size in shape):
        raise ValueError("shape")
    if centroids is None and description.get("kind") == "cvt":
        raise ValueError("a CVT without centroids")
    k = len(archive.ranges)
    if not k or len(archive.measure_names) != k or len(shape) != (k if centroids is None else 1):
        raise ValueError(
            f"{k} ranges, {len(archive.measure_names)} measures, {len(shape)} sizes in its shape"
        )
    check_shape(shape)
    low, high = np.array(archive.ranges).T  # the half of LARGEST, so that differences are finite, too
    if not (np.abs([low, high]) <= LARGEST / 2).all() or not (np.float32(low) < np.float32(high)).all():
        raise ValueError("ranges")
    if centroids is not None and (
        centroids.shape != (shape[0], k)
        or centroids.dtype.kind != "f"
        or not (np.abs(centroids) <= LARGEST / 2).all()
    ):
        raise ValueError("centroids")
    network = description.get("network")
    if network is None:
        return
    _check_replayable(description["task"])
    if not (
        len(network["sizes"]) >= 2
        and all(type(size) is int and size >= 1 for size in network["sizes"])
        and network.get("activation", "tanh") in ("tanh", "relu")
        and network.get("head", "linear") in ("linear", "tanh", "gaussian")
        and float(network["observation_clip"]) > 0
    ):
        raise ValueError("network")
    _check_controls(description["task"], Network.of(network).outputs)


def _check_replayable(task: Mapping[str, Any]) -> None:
    """Raise a ValueError that names what is missing to play policies again."""
    for key, kind in (("physics", str), ("episode_length", int), ("integrator", str)):
        if type(task.get(key)) is not kind:
            raise ValueError(f"task: {key}")
    if not 1 <= task["episode_length"] <= LONGEST_EPISODE:
        raise ValueError(f"task: episode_length: {task['episode_length']}; at most {LONGEST_EPISODE:,}")


def _check_controls(task: Mapping[str, Any], actions: int) -> None:
    """Raise a ValueError unless what the actuators take fits a policy's actions, as far as it is told."""
    if "control_range" in task:
        low, high = np.array(task["control_range"], float).reshape(actions, 2).T
        if not (np.abs([low, high]) <= LARGEST).all() or not (low <= high).all():
            raise ValueError("task: control_range")
    if task.get("control_dt") is not None and not 0 <= float(task["control_dt"]) <= LARGEST:
        raise ValueError("task: control_dt")
