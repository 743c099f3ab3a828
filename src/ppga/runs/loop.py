"""The loop around an algorithm: budget, metrics, checkpoints, display."""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ppga import machine
from ppga.algorithms import ALGORITHMS, Algorithm, PolicyProblem, Problem
from ppga.algorithms.sphere import Sphere
from ppga.archives import Archive, ArchivePair, load_archive, maps
from ppga.archives.pair import elites_of
from ppga.archives.shipped import shipped
from ppga.cluster.crew import Cluster, PoolError, RayCrew, at_work
from ppga.cluster.devices import Devices, agree, join, leads, spread
from ppga.cluster.shares import employ, shares
from ppga.errors import InputError, choose, import_extra, told
from ppga.networks import Network
from ppga.runs import checkpoints
from ppga.runs.config import Budget, PPGAConfig, differences, to_json
from ppga.runs.display import Display, FailSafe, Silent
from ppga.runs.estimate import archive_bytes
from ppga.runs.folder import RunFolder
from ppga.runs.loggers import Logger, TensorBoard, WandB
from ppga.runs.presets import preset
from ppga.runs.signals import recorded
from ppga.storage import sync
from ppga.tasks import TASKS, Environment, find, is_known, make_task, word_for

WRITING_SHARE = 50
"""Writing a checkpoint may take a fiftieth of the time."""
COMPARABLE = ("episode_length", "integrator", "dimensions", "measure_names")
"""What must be the same of two tasks for their scores to be comparable; the engines agree."""
PICTURE_SECONDS = 60.0
"""Least time between two pictures of the archive."""


@dataclass
class Iteration:
    """What a callback gets after every iteration.

    Attributes:
        record: the metrics line.
        algorithm: with its archives and search policies.
        stop: set it to end the run after this iteration.
    """

    record: dict[str, Any]
    algorithm: Algorithm
    stop: bool = False


Callback = Callable[[Iteration], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        archive: the elites.
        record: the last metrics line; None when nothing was done.
        folder: where everything is, if anywhere.
        interrupted: the signal that ended it early.
    """

    archive: Archive
    record: dict[str, Any] | None
    folder: Path | None
    interrupted: signal.Signals | None = None


def train(
    task: str | Environment | Problem,
    config: PPGAConfig | None = None,
    *,
    budget: Budget | None = None,
    output: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    cluster: Cluster | None = None,
) -> Outcome:
    """Train an archive.

    Example:
        >>> import ppga
        >>> config, budget = ppga.preset("smoke", "halfcheetah")
        >>> outcome = ppga.train("halfcheetah", config, budget=budget)
        >>> len(outcome.archive) > 0
        True

    Args:
        task: name of a task, FILE.py:NAME, a task of your own, or any `Problem`.
        config: settings; those of the laptop preset by default.
        budget: when to stop; the preset's 30 minutes by default.
        output: folder for metrics, checkpoints and archive; nothing is written by default.
        callbacks: called with an `Iteration` after every iteration.
        display: shows the run; nothing by default.
        cluster: where the workers are, with `config.cluster`; on this machine by default.

    Raises:
        InputError: settings that cannot work; before anything compiles.
    """
    if isinstance(task, str) and task != "sphere":
        task = find(task)
    name = task_name(task)
    about = task if isinstance(task, str | Environment) else name
    default_config, default_budget = preset("laptop", about)
    config, budget = config or default_config, budget or default_budget
    budget.check()
    if config.cluster == "jax":
        join(cluster or Cluster())
    folder = None if output is None or not leads() else RunFolder(Path(output))
    display = FailSafe(display or Silent())
    with _telling(folder), _resumable(folder, name, cluster), contextlib.ExitStack() as stack:
        if folder:
            folder.check_free()
        if config.init_from and not shipped(config.init_from):  # a resumed run may be called from elsewhere
            config = dataclasses.replace(config, init_from=str(Path(config.init_from).absolute()))
        algorithm = make_algorithm(task, config, display.pulse)
        smaller = _with_smaller_buffer(algorithm, config, folder.path if folder else None)
        if smaller != config:
            ((name_of, before, now),) = differences(config, smaller)
            display.say(f"{name_of} is {now:,}, not {before:,}: more does not fit in memory or on the disk")
            config, algorithm = smaller, make_algorithm(task, smaller, display.pulse)
        _check_run(algorithm, config, budget, folder.path if folder else None)
        if config.init_from:
            check_start(load_archive(config.init_from), algorithm)
        crew = stack.enter_context(_crew(task, algorithm, config, cluster, display.say))
        if folder:
            stack.enter_context(folder.locked())
            folder.check_free()  # another process may have begun there meanwhile
            folder.create(name, config, budget, algorithm.problem.describe())
        algorithm.problem.open(folder.path if folder else None)
        display.begin(f"{config.algorithm} on {name}", 0.0)
        stack.callback(display.end)
        return _run(name, algorithm, config, budget, folder, 0.0, callbacks, display, crew)


def resume(
    run: str | os.PathLike[str],
    *,
    budget: Budget | None = None,
    task: str | Environment | Problem | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    cluster: Cluster | None = None,
) -> Outcome:
    """Continue a run where its newest whole checkpoint left it, bit for bit as if it had never stopped.

    Args:
        run: its folder.
        budget: a new one, of the whole run; that it was begun with by default.
        task: needed again if it was one of your own: itself, or FILE.py:NAME.
        callbacks: as in `train`.
        display: as in `train`.
        cluster: as in `train`; another one than before, if need be.
    """
    folder = RunFolder(Path(run))
    name, config, old_budget = folder.read()
    budget = budget or old_budget
    budget.check()
    display = FailSafe(display or Silent())
    if task is None:
        check_known(name, folder.path)
    elif isinstance(task, str) and task != "sphere":
        task = find(task)
    if config.cluster == "jax":
        join(cluster or Cluster())
    with _telling(folder), _resumable(folder, name, cluster), contextlib.ExitStack() as stack:
        if leads():
            stack.enter_context(folder.locked())
        algorithm = make_algorithm(name if task is None else task, config, display.pulse)
        _check_run(algorithm, config, budget, folder.path)
        folder.check_problem(algorithm.problem.describe())
        for change in folder.strange_to():
            display.say(f"warning: not exactly as uninterrupted: {change}")
        algorithm.problem.open(folder.path)
        found = checkpoints.newest(
            folder.checkpoints,
            lambda message: display.say(f"warning: {message}"),
            lambda checkpoint: _load(algorithm, checkpoint),
        )
        if found is None and config.init_from:
            check_start(load_archive(config.init_from), algorithm)
        seconds = 0.0 if found is None else found.seconds
        share = _share(budget, algorithm, seconds)
        if share >= 1:
            display.say("the run has used up its budget; nothing to do")
            return Outcome(to_archive(algorithm), None, folder.path)
        crew = stack.enter_context(_crew(task or name, algorithm, config, cluster, display.say))
        if leads():
            if budget != old_budget:
                folder.change_budget(budget)
            folder.cut_after(algorithm.iteration, lambda message: display.say(f"warning: {message}"))
        if found is None:
            display.say("no checkpoint was finished yet: starting from the beginning")
        else:
            display.say(f"resuming after iteration {found.iteration}, {seconds / 60:.1f} minutes in")
        display.begin(f"{config.algorithm} on {name}", share)
        stack.callback(display.end)
        mine = folder if leads() else None
        return _run(name, algorithm, config, budget, mine, seconds, callbacks, display, crew)


def _load(algorithm: Algorithm, checkpoint: checkpoints.Checkpoint) -> None:
    """Go on from a checkpoint, or raise an InputError that says why that cannot be."""
    try:
        algorithm.load_state(checkpoint.arrays)
    except KeyError as error:  # of a problem of the user's own
        raise InputError(f"it has no {error}.") from None
    if algorithm.iteration != checkpoint.iteration:
        raise InputError(f"its counters are those of iteration {algorithm.iteration}.")


@contextmanager
def _telling(folder: RunFolder | None) -> Iterator[None]:
    """Tell of a disk that is full, or a folder that cannot be written to, in one message."""
    try:
        yield
    except OSError as error:
        if folder is None:
            raise
        whole = "The last checkpoint is whole; " if folder.checkpoints.exists() else ""
        again = f"{whole}when that is mended: ppga train --resume {folder.path}" if whole else ""
        raise InputError(
            f"cannot write to {folder.path}: {error.strerror or error}. {again}".strip()
        ) from None


@contextmanager
def _resumable(folder: RunFolder | None, task: str, cluster: Cluster | None) -> Iterator[None]:
    """Add to the error of a run whose workers fail how to resume it, where it has a checkpoint."""
    try:
        yield
    except PoolError as error:
        if folder is None or not any(folder.checkpoints.glob("*.json")):
            raise
        word = word_for(task)
        words = ["ppga", "train", *([] if word == task else [word]), "--resume", str(folder.path)]
        if cluster is not None and cluster.address is not None:
            words += ["--address", cluster.address]
        reason = str(error).removesuffix(".")
        raise PoolError(
            f"{reason}. The last checkpoint is intact. Resume with: {shlex.join(words)}"
        ) from error


def _check_run(algorithm: Algorithm, config: PPGAConfig, budget: Budget, folder: Path | None) -> None:
    """Raise an InputError for what would fail only after compiling."""
    if isinstance(algorithm.problem, PolicyProblem) and algorithm.problem.replay is not None:
        algorithm.problem.replay.check(folder)
    budget.check_for(isinstance(algorithm.problem, PolicyProblem))
    if config.keeping.wandb:
        import_extra("wandb", "wandb")


def _with_smaller_buffer(algorithm: Algorithm, config: PPGAConfig, folder: Path | None) -> PPGAConfig:
    """The settings with as large a replay buffer as fits, where that is wanted and there is room for any."""
    problem = algorithm.problem
    replay = problem.replay if isinstance(problem, PolicyProblem) else None
    if replay is None or not config.keeping.fit_buffer:
        return config
    fits = replay.fits(folder)
    if not replay.burst <= fits < replay.capacity:  # not even an iteration would: say so
        return config
    (learner,) = {"td3", "sac"} & set(algorithm.sections)
    part = dataclasses.replace(getattr(config, learner), buffer=fits)
    return dataclasses.replace(config, **{learner: part})


def _begin(algorithm: Algorithm, config: PPGAConfig) -> None:
    """Start at the beginning, with the elites of another run if they are asked for."""
    algorithm.start(load_archive(config.init_from).elites if config.init_from else None)


@contextmanager
def _crew(
    task: str | Environment | Problem,
    algorithm: Algorithm,
    config: PPGAConfig,
    cluster: Cluster | None,
    say: Callable[[str], None],
) -> Iterator[RayCrew | Devices | None]:
    """Those who make the rollouts, if it is not this process on one device."""
    problem = algorithm.problem
    if config.cluster == "none":
        if cluster is not None and cluster != Cluster():
            raise InputError("an address and workers belong to a cluster: --cluster ray or --cluster jax.")
        yield None
        return
    if config.cluster == "jax":
        if not isinstance(problem, PolicyProblem):
            raise InputError("--cluster jax spreads simulations over devices, and here there are none.")
        devices = Devices()
        spread(problem, devices)
        say(f"{devices.count} devices, of {jax.process_count()} processes")
        yield devices
        return
    if cluster is not None and cluster.rank is not None:
        raise InputError("--rank belongs to --cluster jax; Ray numbers its workers itself.")
    if not isinstance(problem, PolicyProblem) or config.simulation.physics != "mujoco":
        raise InputError("--cluster ray spreads MuJoCo's simulations over CPUs, and here there are none.")
    name = task_name(task)
    if not is_known(name) or not (isinstance(task, str) or type(task) is TASKS[name]):
        raise InputError(f"workers make the task themselves: give {name} by its name or as FILE.py:CLASS.")
    word = word_for(name)
    with at_work(cluster or Cluster(), word, to_json(config), shares(problem), say) as crew:
        employ(problem, crew)
        yield crew


def check_known(name: str, run: Path) -> None:
    """Raise an InputError if a run's task is in a file that nobody has named."""
    if name != "sphere" and not is_known(name):
        raise InputError(
            f"{name} is a task of your own; give it again: ppga train FILE.py:NAME --resume {run}, or in "
            "Python ppga.resume(run, task=...)."
        )


def task_name(task: str | Environment | Problem) -> str:
    """What a task is called."""
    if isinstance(task, str):
        return task
    return task.name if isinstance(task, Environment) else str(task.describe()["task"]["name"])


def make_algorithm(
    task: str | Environment | Problem, config: PPGAConfig, progress: Callable[[], None] = lambda: None
) -> Algorithm:
    """An algorithm ready to start; settings that cannot work raise an InputError here."""
    problem: Problem
    if isinstance(task, str) and task != "sphere":
        simulation = dataclasses.asdict(config.simulation)
        task = make_task(task, **simulation)
    choose("algorithm", config.algorithm, ALGORITHMS)
    algorithm = ALGORITHMS[config.algorithm]
    if isinstance(task, Environment):
        config.check(len(task.measure_names))
        problem = algorithm.on(task, config, progress)
    else:
        known: Any = Sphere(config.search) if isinstance(task, str) else task
        problem = known
        if not algorithm.anywhere:
            able = ", ".join(name for name, one in ALGORITHMS.items() if one.anywhere)
            raise InputError(
                f"{config.algorithm} learns in environments, and {task_name(known)} has none; there: {able}."
            )
        config.check(len(problem.measure_names), learns=False)
    cells = config.archive.count(problem.archive_shape)
    needed, free = archive_bytes(problem, cells, algorithm.soft), machine.free_memory()
    if needed > free:
        raise InputError(
            f"a full archive of {cells:,} cells takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
            "of memory are free. Fewer cells: --archive.shape; smaller networks: --network.actor, "
            "--network.critic."
        )
    archives = ArchivePair(
        problem.solution_size,
        problem.archive_shape,
        problem.measure_ranges,
        problem.fields,
        problem.qd_offset,
        config.archive,
    )
    return algorithm(problem, config.search, archives, config.seed)


def to_archive(algorithm: Algorithm) -> Archive:
    """The elites found so far, with all that is needed to use them."""
    archives = algorithm.archives
    elites = elites_of(archives.result)
    del elites["threshold"]  # of an elitist archive: the objective
    elites["episodes"] = archives.judged[elites["index"]].astype(np.int32)
    return Archive(_description(algorithm), elites, archives.centroids)


def _description(algorithm: Algorithm) -> dict[str, Any]:
    """What an archive says of the run that it is from."""
    archives, problem = algorithm.archives, algorithm.problem
    return {
        **problem.describe(),
        "kind": "grid" if archives.centroids is None else "cvt",
        "shape": list(archives.shape),
        "ranges": [list(bounds) for bounds in archives.ranges],
        "measure_names": list(problem.measure_names),
        "qd_offset": archives.qd_offset,
        "algorithm": algorithm.name,
        "judge": algorithm.config.judge,
        "seed": algorithm.seed,
        **algorithm.counters(),
    }


def check_start(archive: Archive, algorithm: Algorithm) -> None:
    """Raise an InputError if a run cannot begin with these elites."""
    theirs, ours = archive.description, algorithm.problem.describe()
    if theirs["task"]["name"] != ours["task"]["name"]:
        raise InputError(f"that archive is of {theirs['task']['name']}, this run of {ours['task']['name']}.")
    for name, value in ours["task"].items():  # elites keep the scores they were judged with
        if name in COMPARABLE and theirs["task"].get(name, value) != value:
            raise InputError(
                f"the scores of that archive cannot be compared with this run's: its {name} is "
                f"{theirs['task'].get(name)!r}, here {value!r}."
            )
    if not len(archive):
        raise InputError("that archive is empty.")
    wanted = {
        "solution": (algorithm.problem.solution_size,),
        "measures": (len(algorithm.problem.measure_names),),
        **algorithm.problem.fields,
    }
    networks = [part["network"] and Network.of(part["network"]) for part in (theirs, ours)]
    differs = networks[0] != networks[1]
    for name, shape in wanted.items():
        if name not in archive.elites:
            raise InputError(f"that archive's {name} is missing, which a run cannot begin without.")
        if differs or archive.elites[name].shape[1:] != shape:
            raise InputError(f"that archive's {name} does not fit: its network is {theirs['network']}, "
                             f"this run's {ours['network']}.")  # fmt: skip


def _share(budget: Budget, algorithm: Algorithm, seconds: float) -> float:
    return budget.spent(algorithm.iteration, seconds / 60, algorithm.env_steps, algorithm.evaluations)


def _run(
    name: str,
    algorithm: Algorithm,
    config: PPGAConfig,
    budget: Budget,
    folder: RunFolder | None,
    seconds: float,
    callbacks: Sequence[Callback],
    display: Display,
    crew: RayCrew | Devices | None,
) -> Outcome:
    """Iterate until the budget is used up, a callback says stop, or a signal comes."""
    began = time.monotonic() - seconds
    steps_before, keeping = algorithm.env_steps, 0.0
    if algorithm.search is None:  # nothing was loaded
        _begin(algorithm, config)
    writer = Writer(folder, name, config, budget, algorithm, display.say) if folder else None
    record: dict[str, Any] | None = None
    with recorded() as caught:
        while True:
            before = time.perf_counter()
            record = algorithm.step()
            now = time.monotonic() - began
            record |= {
                "wall_time": now,
                "steps_per_second": (algorithm.env_steps - steps_before) / max(now - seconds, 1e-9),
                "times": {
                    **algorithm.times,
                    "total": time.perf_counter() - before + keeping,
                    "keeping": keeping,
                },
            }
            if crew is not None:
                record |= crew.record()
            before = time.perf_counter()
            share = _share(budget, algorithm, now)
            iteration = Iteration(record, algorithm, stop=share >= 1 or bool(caught))
            for callback in callbacks:
                callback(iteration)
            stop, ends, saves = agree(
                iteration.stop or bool(caught),
                iteration.stop and not caught,
                writer is not None and writer.due(),
            )
            if writer:
                writer.keep(record, now, last=stop, saves=saves)
            elif stop or saves:
                algorithm.state()  # what this process holds of it goes to the one that writes
            result = algorithm.archives.result
            display.show(
                record, share, algorithm.warnings, algorithm.archives.shape, result.data("index"),
                result.data("objective"),
            )  # fmt: skip
            keeping = time.perf_counter() - before
            if stop:
                break
        if writer:
            writer.close()
    if not (ends or caught):  # a signal came to another process
        caught.append(signal.SIGTERM)
    return Outcome(
        to_archive(algorithm), record, folder.path if folder else None, caught[0] if caught else None
    )


class Writer:
    """Keeps a run's folder up to date.

    Args:
        folder: the run's.
        name: of the task.
        config: the settings.
        budget: of the run.
        algorithm: whose state is kept.
        say: tells the user of what failed without ending the run: a logger, a picture.
    """

    def __init__(
        self,
        folder: RunFolder,
        name: str,
        config: PPGAConfig,
        budget: Budget,
        algorithm: Algorithm,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.algorithm, self.config, self.say = folder, algorithm, config, say
        self.loggers: list[Logger] = []
        if config.keeping.tensorboard:
            try:
                self.loggers.append(TensorBoard(folder.tensorboard, algorithm.iteration))
            except OSError as error:
                self._logger_failed("TensorBoard", error)
        if config.keeping.wandb:
            settings = {"task": name, "budget": to_json(budget), **to_json(config)}
            self.loggers.append(WandB(config.keeping.wandb, folder.path, folder.begun(), settings))
        self.checkpointed = self.pictured = time.monotonic()
        self.pause = config.keeping.checkpoint_seconds
        self.picture_failed = False

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self.checkpointed >= self.pause or self.algorithm.problem.due

    def keep(self, record: dict[str, Any], seconds: float, last: bool, saves: bool) -> None:
        """Write down an iteration and, if it is the last or if told so, a checkpoint."""
        self._append(self.folder.metrics, record)
        if record["iteration"] % self.config.keeping.snapshot_iterations == 0:
            self._append(self.folder.cells, self._snapshot())
        self._tell_loggers(lambda logger: logger.log(record))
        now = time.monotonic()
        if last or saves:
            self.save(seconds)
            took = time.monotonic() - now
            self.checkpointed = time.monotonic()
            least = self.config.keeping.checkpoint_seconds
            self.pause = max(least, WRITING_SHARE * took) if least else 0.0
        if last or now - self.pictured >= PICTURE_SECONDS:
            self._draw()
            self.pictured = time.monotonic()

    def close(self) -> None:
        """Finish the loggers."""
        self._tell_loggers(lambda logger: logger.close())

    def save(self, seconds: float) -> None:
        """Write the archive and a checkpoint; the lines that belong to it are on the disk before."""
        for file in (self.folder.metrics, self.folder.cells):
            if file.exists():
                sync(file)
        sync(self.folder.path)  # their entries
        to_archive(self.algorithm).save(self.folder.archive)
        checkpoints.save(
            self.folder.checkpoints,
            checkpoints.Checkpoint(self.algorithm.iteration, seconds, self.algorithm.state()),
        )

    def _draw(self) -> None:
        """Draw the archive; say so the first time that it fails."""
        archives = self.algorithm.archives
        elites = archives.result.data(["index", "objective"])  # all that is drawn
        try:
            maps.png(Archive(_description(self.algorithm), elites, archives.centroids), self.folder.heatmap)
        except Exception as error:  # of a library that draws, or of the disk
            if not self.picture_failed:
                self.say(f"warning: {self.folder.heatmap.name} could not be drawn: {told(error)}")
            self.picture_failed = True

    def _tell_loggers(self, call: Callable[[Logger], None]) -> None:
        """Call every logger; one that fails is left out from then on."""
        for logger in tuple(self.loggers):
            try:
                call(logger)
            except OSError as error:
                self.loggers.remove(logger)
                self._logger_failed(type(logger).__name__, error)

    def _logger_failed(self, name: str, error: OSError) -> None:
        self.say(f"warning: {name} is switched off, the run goes on without it: {error.strerror or error}")

    def _snapshot(self) -> dict[str, Any]:
        elites = self.algorithm.archives.result.data(["index", "objective"])
        order = np.argsort(elites["index"])
        return {
            "iteration": self.algorithm.iteration,
            "cells": elites["index"][order].tolist(),
            "objectives": [round(float(value), 3) for value in elites["objective"][order]],
        }

    def _append(self, file: Path, content: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(_plain(content)) + "\n")


def _plain(value: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
