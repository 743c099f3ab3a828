"""Corrected archives: every elite judged again, many times, and put where it really lands."""

import hashlib
import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ppga import machine
from ppga.analysis import metrics
from ppga.archives import Archive
from ppga.archives.files import best_of_each
from ppga.errors import InputError, at_least_one
from ppga.policies import Network, Policy
from ppga.rollouts import Judge
from ppga.storage import NumpyArray, is_number, read_json, read_tensors, write_json, write_tensors, write_text
from ppga.tasks import Environment, is_known, make_task, sample, word_for

if TYPE_CHECKING:
    import pandas

AT_ONCE = 512
"""Environments that run at once, unless a single policy takes more."""
PARTIAL = "evaluation-partial.safetensors"
"""The file of an evaluation that has not ended: the episodes of the elites evaluated so far."""


@dataclass(frozen=True)
class Evaluation:
    """What judging every elite again came to.

    Attributes:
        corrected: each policy in the cell where it lands on average, the best of those that share one.
        index: (n,) cell each elite was archived in.
        new_index: (n,) cell it lands in.
        objective: (n,) mean over the episodes.
        objective_spread: (n,) standard deviation over the episodes.
        measures: (n, k) means.
        measures_spread: (n, k) standard deviations.
        claimed_objective: (n,) what it was archived with.
        claimed_measures: (n, k) likewise.
        episodes: played by each.
        physics: engine they were played on.
    """

    corrected: Archive
    index: NumpyArray
    new_index: NumpyArray
    objective: NumpyArray
    objective_spread: NumpyArray
    measures: NumpyArray
    measures_spread: NumpyArray
    claimed_objective: NumpyArray
    claimed_measures: NumpyArray
    episodes: int
    physics: str

    @property
    def moved(self) -> NumpyArray:
        """(n,) how far each elite is from where it was archived, in units of the measures' ranges."""
        low, high = np.array(self.corrected.ranges).T
        return np.asarray(np.linalg.norm((self.measures - self.claimed_measures) / (high - low), axis=1))

    def to_pandas(self) -> "pandas.DataFrame":
        """A row an elite: cells, objective and measures as archived and as seen, spreads, way moved."""
        import pandas

        columns: dict[str, Any] = {
            "cell": self.index,
            "new_cell": self.new_index,
            "objective": self.claimed_objective,
            "objective_mean": self.objective,
            "objective_spread": self.objective_spread,
            "moved": self.moved,
        }
        for number, name in enumerate(self.corrected.measure_names):
            columns[name] = self.claimed_measures[:, number]
            columns[f"{name} mean"] = self.measures[:, number]
            columns[f"{name} spread"] = self.measures_spread[:, number]
        return pandas.DataFrame(columns)


def evaluate(
    archive: Archive,
    episodes: int = 50,
    *,
    physics: str | None = None,
    seed: int = 0,
    task: Environment | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    partial: Path | None = None,
) -> Evaluation:
    """Judge every elite of an archive again, acting as when it was found: by its mean, or with its noise.

    Elites are read and played a few at a time, so a large archive on disk needs little memory.

    Args:
        archive: whose elites are policies.
        episodes: each plays.
        physics: engine; that of the archive by default.
        seed: of the episodes' starts.
        task: what they play; made from the archive's description by default.
        progress: called with how many elites are done, of how many.
        partial: file to write partial results to, now and then, and to resume from if it has those of the
            same evaluation; by default, none. The result is that of an uninterrupted evaluation.
    """
    task = task or task_of(archive, physics)
    objectives, measures = play_all(archive, task, episodes, seed, progress, partial=partial)
    return _summary(archive, objectives, measures, task.physics_name)


def play_all(
    archive: Archive,
    task: Environment,
    episodes: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    play: Judge | None = None,
    partial: Path | None = None,
) -> tuple[NumpyArray, NumpyArray]:
    """Objectives (n, episodes) and measures (n, episodes, k) of all elites; NaN where physics diverged.

    Args:
        archive: whose elites are policies.
        task: what they play.
        episodes: each plays.
        seed: of the episodes' starts.
        progress: called with how many elites are done, of how many.
        play: `judge_of` the same archive, task and episodes, to compile but once for several calls.
        partial: see `evaluate`.
    """
    play = play or judge_of(archive, task, episodes)
    n, together = len(archive), min(len(archive), max(1, AT_ONCE // episodes))
    fields = ("solution", "log_std", "observation_mean", "observation_variance", "observation_count")
    results = {
        "objective": np.zeros((0, episodes), np.float32),
        "measures": np.zeros((0, episodes, len(archive.measure_names)), np.float32),
    }
    description: dict[str, Any] = {}
    if partial is not None:
        description = {"format": "ppga partial evaluation", "of": _fingerprint(archive, task, episodes, seed)}
        results = _partial_results(partial, description, results, n, together)
        if len(results["objective"]):
            progress(len(results["objective"]), n)
    for first in range(len(results["objective"]), n, together):
        rows = np.minimum(np.arange(first, first + together), n - 1)  # the last one fills up
        some = {name: np.asarray(archive.elites[name][rows[0] : rows[-1] + 1]) for name in fields}
        policies = jax.vmap(Policy.of_elite)({name: values[rows - rows[0]] for name, values in some.items()})
        scores, _ = play(policies, jax.random.fold_in(jax.random.key(seed), first // together))
        new = len(np.unique(rows))
        diverged = np.asarray(scores.diverged)[:new]
        added = {
            "objective": np.where(diverged, np.nan, np.asarray(scores.objective)[:new]),
            "measures": np.asarray(scores.measures)[:new],
        }
        results = {name: np.concatenate([values, added[name]]) for name, values in results.items()}
        if partial is not None:
            try:
                write_tensors(partial, results, description)
            except OSError as error:
                raise InputError(f"cannot write to {partial.parent}: {error.strerror or error}.") from None
        progress(len(results["objective"]), n)
    return results["objective"], results["measures"]


def evaluated(partial: Path) -> int:
    """How many elites a file of partial results is of; 0 if there is none, or it is damaged."""
    try:
        return len(read_tensors(partial, mapped=True)[0]["objective"])
    except (InputError, KeyError):
        return 0


def _partial_results(
    partial: Path,
    description: dict[str, Any],
    nothing: dict[str, NumpyArray],
    n: int,
    together: int,
) -> dict[str, NumpyArray]:
    """Results of the first elites from a file; `nothing` if it has none, or those of another evaluation.

    Args:
        partial: the file.
        description: that it has if it is of the same evaluation.
        nothing: the results of no elites.
        n: number of elites.
        together: number of elites that are evaluated at a time.
    """
    try:
        results, found = read_tensors(partial, mapped=True)
    except InputError:
        return nothing
    done = len(results["objective"]) if found == description and results.keys() == nothing.keys() else 0
    fits = all(
        values.shape == (done, *nothing[name].shape[1:]) and values.dtype.kind == "f"
        for name, values in results.items()
    )
    if not (done and fits and (done == n or (done < n and done % together == 0))):
        return nothing
    return {name: np.array(values) for name, values in results.items()}


def _fingerprint(archive: Archive, task: Environment, episodes: int, seed: int) -> str:
    """A hash of all that decides the results of an evaluation: archive, task, options and versions."""
    options = {
        "archive": archive.description,
        "task": [task.name, task.physics_name, task.episode_length, task.integrator],
        "episodes": episodes,
        "seed": seed,
        "at_once": AT_ONCE,
        "versions": machine.describe()["versions"],
    }
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    file, from_file, _ = word_for(task.name).rpartition(":")
    if from_file:
        digest.update(Path(file).read_bytes())
    for name, values in sorted(archive.elites.items()):
        digest.update(f"{name} {values.shape} {values.dtype}".encode())
        for start in range(0, len(values), 64):  # few, for those on the disk
            digest.update(values[start : start + 64].tobytes())
    return digest.hexdigest()


def judge_of(archive: Archive, task: Environment, episodes: int) -> Judge:
    """What plays the elites of an archive; an InputError if they are no policies for the task."""
    at_least_one("episodes", episodes)
    if not len(archive):
        raise InputError("the archive is empty.")
    _check_fits(archive, task)
    network = Network.of(archive.description["network"])
    if (task.observation_size, task.action_size) != (network.sizes[0], network.outputs):
        raise InputError(
            f"the policies see {network.sizes[0]} numbers and give {network.outputs}; {task.name} shows "
            f"{task.observation_size} and takes {task.action_size}."
        )
    return Judge(task, network, episodes, sample=archive.description.get("judge") == "sample")


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write the corrected archive, a table of all elites, and the figures, into an archive's folder.

    Partial results of the evaluation that are there are removed.
    """
    evaluation.corrected.save(folder / "corrected.safetensors")
    write_text(folder / "evaluation.csv", evaluation.to_pandas().to_csv(index=False))
    write_json(folder / "evaluation.json", figures(evaluation))
    (folder / PARTIAL).unlink(missing_ok=True)


def figures(evaluation: Evaluation) -> dict[str, Any]:
    """The corrected archive in numbers, and how well elites repeat what they were archived with."""
    archive = evaluation.corrected
    objective = archive.elites["objective"]
    stayed = evaluation.new_index == evaluation.index
    finite = np.isfinite(evaluation.objective)
    return {
        "episodes": evaluation.episodes,
        "physics": evaluation.physics,
        "qd_offset": archive.qd_offset,
        "qd_score": metrics.qd_score(objective, archive.qd_offset),
        "normalised_qd_score": metrics.normalised_qd_score(objective, archive.qd_offset, archive.cells),
        "coverage": metrics.coverage(objective, archive.cells),
        "best": metrics.best(objective),
        "mean": metrics.mean(objective),
        "elites": len(archive),
        "evaluated": len(evaluation.index),
        "diverged": int((~finite).sum()),
        "stayed_in_cell": float(stayed.mean()),
        "moved_median": float(np.median(evaluation.moved[finite])) if finite.any() else None,
        "objective_spread_median": float(np.median(evaluation.objective_spread[finite]))
        if finite.any()
        else None,
        "objective_lost_median": float(
            np.median((evaluation.claimed_objective - evaluation.objective)[finite])
        )
        if finite.any()
        else None,
    }


def read_figures(file: Path) -> dict[str, Any]:
    """The `figures` in an evaluation.json, or an InputError."""
    found = read_json(file)
    if not isinstance(found, dict):
        raise InputError(f"{file} does not hold the figures of an evaluation.")
    for name, value in found.items():
        if value is None or value != value:  # of an archive without elites there is no best one
            found[name] = None
        elif not (isinstance(value, str) if name == "physics" else is_number(value)):
            raise InputError(f"{file}: {name} cannot be {reprlib.repr(value)}.")
    return found


@dataclass(frozen=True)
class Rows:
    """Some rows of an array that may be on disk, picked when used.

    Attributes:
        values: (n, ...)
        rows: (r,) which of them.
    """

    values: NumpyArray
    rows: NumpyArray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> NumpyArray:
        return np.asarray(self.values[self.rows[key]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        return np.asarray(self.values[self.rows], dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first: (r, ...)."""
        return (len(self.rows), *self.values.shape[1:])

    @property
    def dtype(self) -> Any:
        """Of the values."""
        return self.values.dtype


def task_of(archive: Archive, physics: str | None = None) -> Environment:
    """The task an archive was made on, possibly on another engine."""
    made = archive.description["task"]
    if archive.description.get("network") is None:
        raise InputError(f"the solutions of {made['name']} are not policies.")
    if not is_known(made["name"]):
        raise InputError(
            f"{made['name']} is a task of your own: give it by --task FILE.py:NAME, or task=... in Python."
        )
    usual = sample(made["name"])
    wanted = {
        "physics": (physics or made["physics"], usual.physics_name),
        "episode_length": (made["episode_length"], usual.episode_length),
        "integrator": (made["integrator"], usual.integrator),
    }
    task = make_task(made["name"], **{name: value for name, (value, own) in wanted.items() if value != own})
    _check_fits(archive, task)
    return task


def _check_fits(archive: Archive, task: Environment) -> None:
    """Raise an InputError unless an archive's elites are policies for a task and measured as it measures."""
    made = archive.description["task"]["name"]
    if archive.description.get("network") is None:
        raise InputError(f"the solutions of {made} are not policies.")
    if made != task.name:
        raise InputError(f"the archive is of {made}, not of {task.name}.")
    if archive.measure_names != task.measure_names or not np.allclose(archive.ranges, task.measure_ranges):
        raise InputError(
            f"the archive measures {', '.join(archive.measure_names)} in {archive.ranges}; {task.name} "
            f"measures {', '.join(task.measure_names)} in {task.measure_ranges}."
        )


def _summary(archive: Archive, objectives: NumpyArray, measures: NumpyArray, physics: str) -> Evaluation:
    """Means, spreads, and the archive of what landed where; from (n, episodes) and (n, episodes, k)."""
    objective, place = objectives.mean(axis=1), measures.mean(axis=1)
    finite = np.isfinite(objective) & np.isfinite(place).all(axis=1)
    new_index = np.full(len(objective), -1)
    new_index[finite] = archive.cells_of(place[finite])
    rows = best_of_each(new_index, objective)
    elites: dict[str, Any] = {name: Rows(values, rows) for name, values in archive.elites.items()}
    elites |= {
        "index": new_index[rows].astype(np.int32),
        "objective": objective[rows].astype(np.float32),
        "measures": place[rows].astype(np.float32),
        "episodes": np.full(len(rows), objectives.shape[1], np.int32),
    }
    description = archive.description | {"corrected": {"episodes": objectives.shape[1], "physics": physics}}
    return Evaluation(
        corrected=Archive(description, elites, archive.centroids),
        index=np.asarray(archive.elites["index"]),
        new_index=new_index,
        objective=objective,
        objective_spread=objectives.std(axis=1),
        measures=place,
        measures_spread=measures.std(axis=1),
        claimed_objective=np.asarray(archive.elites["objective"]),
        claimed_measures=np.asarray(archive.elites["measures"]),
        episodes=objectives.shape[1],
        physics=physics,
    )
