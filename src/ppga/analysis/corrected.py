"""Corrected archives: every elite is re-evaluated in many episodes and moves to the cell where it lands."""

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
from ppga.archives.files import CORRECTED_FILE, EVALUATION_FILE, best_of_each
from ppga.errors import InputError, check_count
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts import Evaluator, EvaluatorSettings
from ppga.storage import NumpyArray, is_number, read_json, read_tensors, write_json, write_tensors, write_text
from ppga.tasks import Environment, is_registered, make_task, sample, task_argument

if TYPE_CHECKING:
    import pandas

AT_ONCE = 512
"""Environments that run at once; more if a single policy has more episodes."""
PARTIAL = "evaluation-partial.safetensors"
"""File of an unfinished evaluation: the results of the elites evaluated so far."""


@dataclass(frozen=True)
class Evaluation:
    """Results of re-evaluating the n elites of an archive.

    Attributes:
        corrected: the corrected archive: each policy in the cell of its mean measures, the best of each cell.
        index: (n,) cell of each elite in the archive.
        new_index: (n,) cell of its mean measures; -1 if they are not finite.
        objective: (n,) mean over the episodes.
        objective_std: (n,) standard deviation over the episodes.
        measures: (n, k) mean over the episodes.
        measures_std: (n, k) standard deviation over the episodes.
        length: (n,) mean number of control steps.
        survival: (n,) share of the episodes that lasted until the time limit.
        archived_objective: (n,) objective in the archive.
        archived_measures: (n, k) measures in the archive.
        episodes: episodes of each elite.
        physics: engine of the evaluation.
    """

    corrected: Archive
    index: NumpyArray
    new_index: NumpyArray
    objective: NumpyArray
    objective_std: NumpyArray
    measures: NumpyArray
    measures_std: NumpyArray
    length: NumpyArray
    survival: NumpyArray
    archived_objective: NumpyArray
    archived_measures: NumpyArray
    episodes: int
    physics: str

    @property
    def drift(self) -> NumpyArray:
        """(n,) distance between new and archived measures, in units of the measures' ranges."""
        low, high = np.array(self.corrected.ranges).T
        return np.asarray(np.linalg.norm((self.measures - self.archived_measures) / (high - low), axis=1))

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame with one row for each elite: cells, scores in the archive, new scores, and drift."""
        import pandas

        columns: dict[str, Any] = {
            "cell": self.index,
            "new_cell": self.new_index,
            "objective": self.archived_objective,
            "objective_mean": self.objective,
            "objective_std": self.objective_std,
            "length": self.length,
            "survival": self.survival,
            "drift": self.drift,
        }
        for number, name in enumerate(self.corrected.measure_names):
            columns[name] = self.archived_measures[:, number]
            columns[f"{name} mean"] = self.measures[:, number]
            columns[f"{name} std"] = self.measures_std[:, number]
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
    """Re-evaluate every elite of an archive, with mean or sampled actions as in its training.

    Elites are read and evaluated a few at a time, so a large archive on disk needs little memory.

    Args:
        archive: an archive of policies.
        episodes: episodes of each elite.
        physics: engine; that of the archive by default.
        seed: of the episodes' starts.
        task: the task; made from the archive's description by default.
        progress: called with the number of evaluated elites and their total.
        partial: file for partial results. If it exists and belongs to the same evaluation, the evaluation is
            resumed from it, with the same results as without interruption. None for no such file.
    """
    task = task or task_of(archive, physics)
    results = play_all(archive, task, episodes, seed, progress, partial=partial)
    return _correct(archive, results, task.physics_name)


def play_all(
    archive: Archive,
    task: Environment,
    episodes: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    evaluator: Evaluator | None = None,
    partial: Path | None = None,
) -> dict[str, NumpyArray]:
    """Scores of all elites in each episode.

    Args:
        archive: an archive of policies.
        task: the task.
        episodes: episodes of each elite.
        seed: of the episodes' starts.
        progress: called with the number of evaluated elites and their total.
        evaluator: by `make_evaluator` for the same archive, task and episodes, to compile only once for
            several calls.
        partial: see `evaluate`.

    Returns:
        objective (n, episodes), NaN where the physics diverged; measures (n, episodes, k); steps (n,
        episodes); and survived (n, episodes) bool, whether the episode lasted until the time limit.
    """
    evaluator = evaluator or make_evaluator(archive, task, episodes)
    n, batch = len(archive), min(len(archive), max(1, AT_ONCE // episodes))
    fields = ("solution", "log_std", "observation_mean", "observation_variance", "observation_count")
    results = {
        "objective": np.zeros((0, episodes), np.float32),
        "measures": np.zeros((0, episodes, len(archive.measure_names)), np.float32),
        "steps": np.zeros((0, episodes), np.int32),
        "survived": np.zeros((0, episodes), bool),
    }
    description: dict[str, Any] = {}
    if partial is not None:
        description = {"format": "ppga partial evaluation", "of": _fingerprint(archive, task, episodes, seed)}
        results = _partial_results(partial, description, results, n, batch)
        if len(results["objective"]):
            progress(len(results["objective"]), n)
    for first in range(len(results["objective"]), n, batch):
        rows = np.minimum(np.arange(first, first + batch), n - 1)  # the last batch is filled up
        elites = {name: np.asarray(archive.elites[name][rows[0] : rows[-1] + 1]) for name in fields}
        policies = jax.vmap(Policy.of_elite)(
            {name: values[rows - rows[0]] for name, values in elites.items()}
        )
        scores, _ = evaluator(policies, jax.random.fold_in(jax.random.key(seed), first // batch))
        new = len(np.unique(rows))
        diverged = np.asarray(scores.diverged)[:new]
        added = {
            "objective": np.where(diverged, np.nan, np.asarray(scores.objective)[:new]),
            "measures": np.asarray(scores.measures)[:new],
            "steps": np.asarray(scores.steps)[:new],
            "survived": ~np.asarray(scores.terminated)[:new],
        }
        results = {name: np.concatenate([values, added[name]]) for name, values in results.items()}
        if partial is not None:
            try:
                write_tensors(partial, results, description)
            except OSError as error:
                raise InputError(f"cannot write to {partial.parent}: {error.strerror or error}.") from None
        progress(len(results["objective"]), n)
    return results


def evaluated(partial: Path) -> int:
    """Number of elites in a file of partial results; 0 if it does not exist or is damaged."""
    try:
        return len(read_tensors(partial, mapped=True)[0]["objective"])
    except (InputError, KeyError):
        return 0


def _partial_results(
    partial: Path,
    description: dict[str, Any],
    empty: dict[str, NumpyArray],
    n: int,
    batch: int,
) -> dict[str, NumpyArray]:
    """Results of the first elites from a file; `empty` if there are none, or those of another evaluation.

    Args:
        partial: the file.
        description: its description if it belongs to the same evaluation.
        empty: the results of no elites.
        n: number of elites.
        batch: number of elites that are evaluated at a time.
    """
    try:
        results, stored = read_tensors(partial, mapped=True)
    except InputError:
        return empty
    done = len(results["objective"]) if stored == description and results.keys() == empty.keys() else 0
    fits = all(
        values.shape == (done, *empty[name].shape[1:]) and values.dtype == empty[name].dtype
        for name, values in results.items()
    )
    if not (done and fits and (done == n or (done < n and done % batch == 0))):
        return empty
    return {name: np.array(values) for name, values in results.items()}


def _fingerprint(archive: Archive, task: Environment, episodes: int, seed: int) -> str:
    """A hash of everything that determines an evaluation's results: archive, task, options and versions."""
    options = {
        "archive": archive.description,
        "task": [task.name, task.physics_name, task.episode_length, task.integrator, task.clip],
        "episodes": episodes,
        "seed": seed,
        "at_once": AT_ONCE,
        "versions": machine.describe()["versions"],
    }
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    file, from_file, _ = task_argument(task.name).rpartition(":")
    if from_file:
        digest.update(Path(file).read_bytes())
    for name, values in sorted(archive.elites.items()):
        digest.update(f"{name} {values.shape} {values.dtype}".encode())
        for start in range(0, len(values), 64):  # few rows at a time, because they may be on disk
            digest.update(values[start : start + 64].tobytes())
    return digest.hexdigest()


def make_evaluator(archive: Archive, task: Environment, episodes: int) -> Evaluator:
    """An evaluator of an archive's elites; an InputError if they are not policies for the task."""
    check_count("episodes", episodes)
    if not len(archive):
        raise InputError("the archive is empty.")
    _check_fits(archive, task)
    network = Network.of(archive.description["network"])
    check_network(network, task)
    sample_actions = archive.description.get("actions") == "sample"
    return Evaluator(task, network, EvaluatorSettings(episodes, sample_actions))


def check_network(network: Network, task: Environment) -> None:
    """Raise an InputError unless a network takes a task's observations and returns its actions."""
    if (task.observation_size, task.action_size) != (network.sizes[0], network.outputs):
        raise InputError(
            f"the policies take {network.sizes[0]} observations and return {network.outputs} actions; "
            f"{task.name} has {task.observation_size} observations and {task.action_size} actions."
        )


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write the corrected archive, a table of all elites, and the metrics to a folder.

    The file of partial results is removed.

    Args:
        evaluation: what to write.
        folder: an archive's folder.
    """
    evaluation.corrected.save(folder / CORRECTED_FILE)
    write_text(folder / "evaluation.csv", evaluation.to_pandas().to_csv(index=False))
    write_json(folder / EVALUATION_FILE, evaluation_metrics(evaluation))
    (folder / PARTIAL).unlink(missing_ok=True)


def evaluation_metrics(evaluation: Evaluation) -> dict[str, Any]:
    """Metrics of the corrected archive, and of how well elites reproduce their archived scores."""
    archive = evaluation.corrected
    objective = archive.elites["objective"]
    finite = np.isfinite(evaluation.objective)
    loss = evaluation.archived_objective - evaluation.objective

    def median(values: NumpyArray) -> float | None:
        return float(np.median(values[finite])) if finite.any() else None

    return {
        "episodes": evaluation.episodes,
        "physics": evaluation.physics,
        "qd_offset": archive.qd_offset,
        "qd_score": metrics.qd_score(objective, archive.qd_offset),
        "normalized_qd_score": metrics.normalized_qd_score(objective, archive.qd_offset, archive.cells),
        "coverage": metrics.coverage(objective, archive.cells),
        "best": metrics.best(objective),
        "mean": metrics.mean(objective),
        "survivor_coverage": archive.survivor_coverage,
        "elites": len(archive),
        "evaluated": len(evaluation.index),
        "diverged": int((~finite).sum()),
        "reproducibility": float((evaluation.new_index == evaluation.index).mean()),
        "drift_median": median(evaluation.drift),
        "objective_std_median": median(evaluation.objective_std),
        "objective_loss_median": median(loss),
    }


def read_evaluation(file: Path) -> dict[str, Any]:
    """The metrics in a file that `save` has written; an InputError if they are not valid."""
    content = read_json(file)
    if not isinstance(content, dict):
        raise InputError(f"{file} does not hold the metrics of an evaluation.")
    for name, value in content.items():
        if value is None or value != value:  # an archive without elites has no best one
            content[name] = None
        elif not (isinstance(value, str) if name == "physics" else is_number(value)):
            raise InputError(f"{file}: {name} cannot be {reprlib.repr(value)}.")
    return content


@dataclass(frozen=True)
class Rows:
    """Some rows of an array that may be on disk, read when they are used.

    Attributes:
        values: (n, ...) the array.
        rows: (r,) numbers of the rows.
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
        """Shape (r, ...) of the rows."""
        return (len(self.rows), *self.values.shape[1:])

    @property
    def dtype(self) -> Any:
        """Type of the values."""
        return self.values.dtype


def task_of(archive: Archive, physics: str | None = None) -> Environment:
    """The task of an archive, with the same settings.

    Args:
        archive: an archive of policies.
        physics: engine; that of the archive by default.
    """
    description = archive.description["task"]
    name = description["name"]
    archive.check_policies()
    if not is_registered(name):
        raise InputError(
            f"{name} is a task of your own: give it by --task FILE.py:NAME, or task=... in Python."
        )
    default = sample(name)
    settings = {
        "physics": (physics or description["physics"], default.physics_name),
        "episode_length": (description["episode_length"], default.episode_length),
        "integrator": (description["integrator"], default.integrator),
        "clip": (description.get("clip"), default.clip),
    }
    task = make_task(name, **{key: value for key, (value, usual) in settings.items() if value != usual})
    _check_fits(archive, task)
    return task


def _check_fits(archive: Archive, task: Environment) -> None:
    """Raise an InputError unless an archive's elites are policies for a task, with the task's measures."""
    name = archive.description["task"]["name"]
    archive.check_policies()
    if name != task.name:
        raise InputError(f"the archive is of {name}, not of {task.name}.")
    if archive.measure_names != task.measure_names or not np.allclose(archive.ranges, task.measure_ranges):
        raise InputError(
            f"the archive measures {', '.join(archive.measure_names)} in {archive.ranges}; {task.name} "
            f"measures {', '.join(task.measure_names)} in {task.measure_ranges}."
        )


def _correct(archive: Archive, results: dict[str, NumpyArray], physics: str) -> Evaluation:
    """Means, standard deviations and the corrected archive.

    Args:
        archive: the evaluated archive.
        results: scores of its elites, see `play_all`.
        physics: engine of the evaluation.
    """
    objectives, measures = results["objective"], results["measures"]
    statistics = {
        "objective_std": objectives.std(axis=1),
        "measures_std": measures.std(axis=1),
        "length": results["steps"].mean(axis=1),
        "survival": results["survived"].mean(axis=1),
    }
    objective, mean_measures = objectives.mean(axis=1), measures.mean(axis=1)
    finite = np.isfinite(objective) & np.isfinite(mean_measures).all(axis=1)
    new_index = np.full(len(objective), -1)
    new_index[finite] = archive.cells_of(mean_measures[finite])
    rows = best_of_each(new_index, objective)
    elites: dict[str, Any] = {name: Rows(values, rows) for name, values in archive.elites.items()}
    elites |= {
        "index": new_index[rows].astype(np.int32),
        "objective": objective[rows].astype(np.float32),
        "measures": mean_measures[rows].astype(np.float32),
        "episodes": np.full(len(rows), objectives.shape[1], np.int32),
        **{name: values[rows].astype(np.float32) for name, values in statistics.items()},
    }
    description = archive.description | {"corrected": {"episodes": objectives.shape[1], "physics": physics}}
    return Evaluation(
        corrected=Archive(description, elites, archive.centroids),
        index=np.asarray(archive.elites["index"]),
        new_index=new_index,
        objective=objective,
        measures=mean_measures,
        **statistics,
        archived_objective=np.asarray(archive.elites["objective"]),
        archived_measures=np.asarray(archive.elites["measures"]),
        episodes=objectives.shape[1],
        physics=physics,
    )
