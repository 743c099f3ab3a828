"""Training: new and resumed runs, which share everything but where they start."""

import contextlib
import dataclasses
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppga.algorithms import Algorithm, AlgorithmConfig, preset
from ppga.archives import Archive, load_archive
from ppga.archives.included import find_included
from ppga.config import Budget, differences
from ppga.distributed.cluster import Cluster
from ppga.distributed.devices import any_process, is_primary, join
from ppga.distributed.ray_pool import PoolError
from ppga.errors import InputError, import_extra
from ppga.problems import PolicyProblem, Problem
from ppga.rollouts import Executor, LocalExecutor
from ppga.runs import checkpoints
from ppga.runs.build import (
    make_algorithm,
    make_executor,
    task_name,
    with_fitting_buffer,
    work_of,
)  # fmt: skip
from ppga.runs.compiling import compilation_shown
from ppga.runs.display import Display, FailSafe, Silent
from ppga.runs.folder import RunFolder
from ppga.runs.results import check_initial_archive, to_archive
from ppga.runs.signals import caught_signals
from ppga.runs.writer import Writer
from ppga.tasks import SPHERE, Environment, find, is_registered, task_argument


@dataclass
class Iteration:
    """Argument of a callback after every iteration.

    Attributes:
        record: metrics of the iteration.
        algorithm: the algorithm, with its archive and search policy.
        stop: set it to end the run after this iteration.
    """

    record: dict[str, Any]
    algorithm: Algorithm
    stop: bool = False


Callback = Callable[[Iteration], None]


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        archive: the elites.
        record: metrics of the last iteration; None if there was nothing to do.
        folder: folder of the run, if it has one.
        interrupted: the signal that ended the run early, if any.
    """

    archive: Archive
    record: dict[str, Any] | None
    folder: Path | None
    interrupted: signal.Signals | None = None


def train(
    task: str | Environment | Problem,
    config: AlgorithmConfig | None = None,
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
        task: name of a task, FILE.py:NAME, a task, or any `Problem`.
        config: settings, whose class chooses the algorithm; PPGA with the preset `laptop` by default.
        budget: when to stop; 30 minutes by default.
        output: folder of metrics, checkpoints and archive; nothing is written by default.
        callbacks: called with an `Iteration` after every iteration.
        display: shows the progress; nothing by default.
        cluster: where the workers or processes are, with `config.cluster`; this machine by default.

    Raises:
        InputError: settings that cannot work; raised before anything compiles.
    """
    if isinstance(task, str) and task != SPHERE:
        task = find(task)
    if config is None or budget is None:
        laptop, minutes = preset("laptop", task if isinstance(task, str | Environment) else task_name(task))
        config, budget = config or laptop, budget or minutes
    if config.init_from and not find_included(config.init_from):  # a resumed run may have another directory
        config = dataclasses.replace(config, init_from=str(Path(config.init_from).absolute()))
    folder = None if output is None else RunFolder(Path(output))
    return _Session(task, config, budget, folder, callbacks, display, cluster).run(None)


def resume(
    run: str | os.PathLike[str],
    *,
    budget: Budget | None = None,
    task: str | Environment | Problem | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    cluster: Cluster | None = None,
) -> Outcome:
    """Resume a run from its newest intact checkpoint; the result is bit-identical to an uninterrupted run.

    Args:
        run: folder of the run.
        budget: a new budget for the whole run; its own by default.
        task: needed if the task is not included with ppga: the task itself, or FILE.py:NAME.
        callbacks: see `train`.
        display: see `train`.
        cluster: see `train`; may differ from before.
    """
    folder = RunFolder(Path(run))
    name, config, old_budget = folder.read()
    if task is None:
        check_known(name, folder.path)
        task = name
    elif isinstance(task, str) and task != SPHERE:
        task = find(task)
    return _Session(task, config, budget or old_budget, folder, callbacks, display, cluster).run(old_budget)


class _Session:
    """One process' part of a run, from its start or resume to its end; see `train` for the arguments."""

    def __init__(
        self,
        task: str | Environment | Problem,
        config: AlgorithmConfig,
        budget: Budget,
        folder: RunFolder | None,
        callbacks: Sequence[Callback],
        display: Display | None,
        cluster: Cluster | None,
    ) -> None:
        budget.check()
        if config.cluster == "jax":
            join(cluster or Cluster())
        self.task, self.name, self.config, self.budget = task, task_name(task), config, budget
        self.folder, self.callbacks, self.cluster = folder, callbacks, cluster
        self.display = FailSafe(display or Silent())
        self.seconds = 0.0
        """Wall time of the run before this session."""

    @property
    def path(self) -> Path | None:
        """Path of the folder."""
        return None if self.folder is None else self.folder.path

    @property
    def written_folder(self) -> RunFolder | None:
        """The folder, if this process is the one that writes it."""
        return self.folder if is_primary() else None

    def run(self, old_budget: Budget | None) -> Outcome:
        """Run until the budget is used up.

        Args:
            old_budget: previous budget of a run that is resumed; None for a new run.
        """
        with (
            report_disk_errors(self.written_folder),
            _suggest_resume(self.folder, self.name, self.cluster),
            contextlib.ExitStack() as stack,
        ):
            executor = make_executor(self.config, self.cluster)
            if old_budget is None:
                algorithm = self._new_algorithm(executor)
            else:
                if self.written_folder:
                    stack.enter_context(self.written_folder.locked())
                algorithm = self._restored_algorithm(executor)
                if self._budget_share(algorithm, self.seconds) >= 1:
                    self.display.say("the run has used up its budget; nothing to do")
                    return Outcome(to_archive(algorithm), None, self.path)
            if not isinstance(executor, LocalExecutor):
                stack.enter_context(executor.open(work_of(self.task, algorithm), self.display.say))
            if old_budget is not None:
                self._update_folder(algorithm, old_budget)
            else:
                if self.written_folder:
                    stack.enter_context(self.written_folder.locked())
                    self.written_folder.check_free()  # another process may have started there meanwhile
                    description = algorithm.problem.describe()
                    self.written_folder.create(self.name, self.config, self.budget, description)
                algorithm.problem.open(self.path)
            share = self._budget_share(algorithm, self.seconds)
            self.display.begin(f"{self.config.algorithm} on {self.name}", share)
            stack.callback(self.display.end)
            stack.enter_context(compilation_shown(self.display.compiling))
            return self._iterate(algorithm, executor)

    def _new_algorithm(self, executor: Executor) -> Algorithm:
        """The algorithm of a new run."""
        if self.written_folder:
            self.written_folder.check_free()
        algorithm = make_algorithm(self.task, self.config, executor, self.display.pulse)
        fitting = with_fitting_buffer(algorithm, self.config, self.path)
        for name, before, after in differences(self.config, fitting):
            self.display.say(
                f"{name} is {after:,}, not {before:,}: more does not fit in memory or on the disk"
            )
        if fitting != self.config:
            algorithm = make_algorithm(self.task, fitting, executor, self.display.pulse)
        self.config = fitting
        self._check(algorithm)
        if self.config.init_from:
            check_initial_archive(load_archive(self.config.init_from), algorithm)
        return algorithm

    def _restored_algorithm(self, executor: Executor) -> Algorithm:
        """The algorithm of a resumed run, in the state of the newest intact checkpoint."""
        assert self.folder is not None
        algorithm = make_algorithm(self.task, self.config, executor, self.display.pulse)
        self._check(algorithm)
        self.folder.check_problem(algorithm.problem.describe())
        for difference in self.folder.machine_differences():
            self.display.say(f"warning: the resumed run will not be bit-exact: {difference}")
        algorithm.problem.open(self.folder.path)
        checkpoint = checkpoints.newest(
            self.folder.checkpoints,
            lambda message: self.display.say(f"warning: {message}"),
            lambda checkpoint: _restore(algorithm, checkpoint),
        )
        if checkpoint is not None:
            self.seconds = checkpoint.seconds
        elif self.config.init_from:
            check_initial_archive(load_archive(self.config.init_from), algorithm)
        return algorithm

    def _update_folder(self, algorithm: Algorithm, old_budget: Budget) -> None:
        """Prepare the folder of a resumed run for what follows."""
        if self.written_folder:
            if self.budget != old_budget:
                self.written_folder.change_budget(self.budget)
            self.written_folder.cut_after(
                algorithm.iteration, lambda message: self.display.say(f"warning: {message}")
            )
        if algorithm.iteration:
            minutes = self.seconds / 60
            self.display.say(f"resuming after iteration {algorithm.iteration}, {minutes:.1f} minutes in")
        else:
            self.display.say("there is no complete checkpoint yet: starting from the beginning")

    def _check(self, algorithm: Algorithm) -> None:
        """Raise an InputError for what would fail only after compiling."""
        problem = algorithm.problem
        if isinstance(problem, PolicyProblem) and problem.replay is not None:
            problem.replay.check(self.path)
        self.budget.check(simulated=isinstance(problem, PolicyProblem))
        if self.config.log.wandb:
            import_extra("wandb", "wandb")

    def _budget_share(self, algorithm: Algorithm, seconds: float) -> float:
        """Share of the budget that is used up."""
        return self.budget.spent(
            algorithm.iteration, seconds / 60, algorithm.env_steps, algorithm.evaluations
        )

    def _iterate(self, algorithm: Algorithm, executor: Executor) -> Outcome:
        """Iterate until the budget is used up, a callback asks to stop, or a signal arrives."""
        begin = time.monotonic() - self.seconds
        steps_before, log_seconds = algorithm.env_steps, 0.0
        if algorithm.problem_state is None:  # no checkpoint was loaded
            source = self.config.init_from
            algorithm.start(load_archive(source).elites if source else None)
        folder = self.written_folder
        writer = None
        if folder:
            writer = Writer(folder, self.name, self.config, self.budget, algorithm, self.display.say)
        with caught_signals() as signals:
            while True:
                iteration_begin = time.perf_counter()
                record = algorithm.step()
                now = time.monotonic() - begin
                record |= {
                    "wall_time": now,
                    "steps_per_second": (algorithm.env_steps - steps_before) / max(now - self.seconds, 1e-9),
                    "times": {
                        **algorithm.times,
                        "total": time.perf_counter() - iteration_begin + log_seconds,
                        "log": log_seconds,
                    },
                    **executor.metrics(),
                }
                log_begin = time.perf_counter()
                share = self._budget_share(algorithm, now)
                iteration = Iteration(record, algorithm, stop=share >= 1 or bool(signals))
                for callback in self.callbacks:
                    callback(iteration)
                stop, complete, checkpoint = any_process(
                    iteration.stop or bool(signals),
                    iteration.stop and (share >= 1 or not signals),
                    writer is not None and writer.checkpoint_due(),
                )
                if writer:
                    writer.write(record, now, last=stop, checkpoint=checkpoint)
                elif stop or checkpoint:
                    algorithm.state()  # sends this process' part to the process that writes
                elites = algorithm.elites
                self.display.show(
                    record, share, algorithm.warnings, elites.shape, elites.occupied, elites.objectives
                )
                log_seconds = time.perf_counter() - log_begin
                if stop:
                    break
            if writer:
                writer.close()
        interrupted = None
        if not complete:
            interrupted = signals[0] if signals else signal.SIGTERM  # none here: another process got it
        return Outcome(to_archive(algorithm), record, self.path if folder else None, interrupted)


def _restore(algorithm: Algorithm, checkpoint: checkpoints.Checkpoint) -> None:
    """Load a checkpoint, or raise an InputError that says why that is not possible."""
    try:
        algorithm.load_state(checkpoint.arrays)
    except KeyError as error:  # from a problem of the user's own
        raise InputError(f"the array {error} is missing.") from None
    if algorithm.iteration != checkpoint.iteration:
        raise InputError(f"its counters are those of iteration {algorithm.iteration}.")


@contextmanager
def report_disk_errors(folder: RunFolder | None) -> Iterator[None]:
    """Report a full disk, or a folder that cannot be written to, in one message."""
    try:
        yield
    except OSError as error:
        if folder is None:
            raise
        advice = ""
        if folder.checkpoints.exists():
            advice = f"The last checkpoint is intact; fix this, then run: ppga train --resume {folder.path}"
        raise InputError(
            f"cannot write to {folder.path}: {error.strerror or error}. {advice}".strip()
        ) from None


@contextmanager
def _suggest_resume(folder: RunFolder | None, task: str, cluster: Cluster | None) -> Iterator[None]:
    """Add the command that resumes the run to the error of a worker pool, if there is a checkpoint."""
    try:
        yield
    except PoolError as error:
        if folder is None or not any(folder.checkpoints.glob("*.json")):
            raise
        word = task_argument(task)
        words = ["ppga", "train", *([] if word == task else [word]), "--resume", str(folder.path)]
        if cluster is not None and cluster.address is not None:
            words += ["--address", cluster.address]
        reason = str(error).removesuffix(".")
        raise PoolError(
            f"{reason}. The last checkpoint is intact. Resume with: {shlex.join(words)}"
        ) from error


def check_known(name: str, run: Path) -> None:
    """Raise an InputError if a run's task is in a file that has not been named."""
    if name != SPHERE and not is_registered(name):
        raise InputError(
            f"{name} is a task of your own; give it again: ppga train FILE.py:NAME --resume {run}, or in "
            "Python ppga.resume(run, task=...)."
        )
