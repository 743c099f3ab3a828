"""The command `ppga train`: what is typed becomes a run, and what came of it is shown."""

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from ppga import machine
from ppga.algorithms import ALGORITHMS
from ppga.archives.maps import text as heatmap
from ppga.cluster.crew import Cluster
from ppga.cluster.devices import join, leads
from ppga.errors import InputError, choose
from ppga.runs import PRESETS, Budget, Outcome, PPGAConfig, preset, train
from ppga.runs import resume as continue_run
from ppga.runs.config import differences
from ppga.runs.display import Display, Lines, Picture, Silent
from ppga.runs.estimate import Estimate, estimate, span
from ppga.runs.folder import RunFolder
from ppga.runs.loop import check_known, make_algorithm
from ppga.runs.signals import exit_on_signals
from ppga.tasks import TASKS, find, word_for


def check(words: Sequence[str]) -> None:
    """End as the command would if it cannot be run with these words, and do nothing else."""
    tyro.cli(command(words, Console(quiet=True), act=False), args=list(words), prog="ppga train")


def command(
    words: Sequence[str], console: Console, known_task: str | None = None, act: bool = True
) -> Callable[..., None]:
    """The command as a function for tyro, with the defaults of the preset, task or run that the words name.

    Args:
        words: of the command line.
        console: to print on.
        known_task: whose defaults to take; guessed from the words if not given.
        act: whether to run it, not only to look whether that can be done.
    """
    given_preset = _after("--preset", words) or "laptop"
    algorithm = _after("--algorithm", words) or "ppga"
    old_run = _after("--resume", words)
    if (RunFolder(Path(old_run)).read()[1].cluster if old_run else _after("--cluster", words)) == "jax":
        join(_meeting(words))  # before anything computes
    guess = known_task or next((name for word in words if (name := _named(word))), "halfcheetah")
    default_budget: Budget | None
    if old_run:
        old_task, defaults, default_budget = RunFolder(Path(old_run)).read()
    else:
        old_task = None
        defaults, default_budget = preset(given_preset, guess, algorithm)

    def run(
        task: Annotated[Positional[str | None], tyro.conf.arg(metavar="TASK")] = None,
        preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "laptop",
        iterations: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        minutes: Annotated[float | None, tyro.conf.arg(metavar="N")] = None,
        env_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        evaluations: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
        resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None,
        address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
        workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        rank: Annotated[int | None, tyro.conf.arg(metavar="I")] = None,
        quiet: bool = False,
        dry_run: bool = False,
        config: Annotated[PPGAConfig, tyro.conf.arg(name="")] = defaults,
    ) -> None:
        """Train an archive of many good and different policies.

        Example: ppga train walker2d --minutes 10 --seed 1 --output runs/walker

        To go on later: ppga train --resume runs/walker --minutes 20

        Args:
            task: the robot, see `ppga tasks`, or your own, FILE.py:CLASS; or sphere, a problem of a second.
                As an option: --task FILE.py:CLASS.
            preset: settings to begin with: laptop, paper or smoke.
            iterations: end after that many iterations.
            minutes: end after that many minutes of wall time, those before a --resume included. Without any
                of these four: the preset's, 30 minutes for laptop, days for paper, 2 iterations for smoke.
            env_steps: end after that many control steps, learning and judging.
            evaluations: end after that many judged policies.
            output: the run's folder; runs/TASK-ALGORITHM-TIME by default.
            resume: continue this run, as if it had never stopped; budgets may be raised.
            address: with --cluster ray, a Ray cluster that is there, or auto; one on this machine by default.
                With --cluster jax, where the first of several processes is, or auto where SLURM began them.
            workers: with --cluster ray, how many; results do not depend on it. With --cluster jax, how many
                processes, if there are several.
            rank: with --cluster jax, which of the processes this is, from 0; the first one writes the run.
            quiet: print the end and warnings only.
            dry_run: show the settings, the memory and the time it will take, and stop.
            config: all else.
        """
        given = Budget(iterations, minutes, env_steps, evaluations)
        budget = default_budget if given == Budget() else given
        assert budget is not None
        budget.check()
        cluster = Cluster(address, workers, rank)
        display = make_display(console, quiet) if leads() else Silent()
        if resume is not None:
            task = find(task) if task is not None and task != "sphere" else task
            _check_resumed(resume, task, old_task, defaults, config, output, "--preset" in " ".join(words))
            task = old_task if task is None else task
            check_known(str(task), resume)
        if task is None:
            raise InputError(f"which task? One of {', '.join(TASKS)}, FILE.py:NAME; or --resume RUN.")
        if resume is None:
            task = task if task == "sphere" else find(task)
            if task != guess:  # another word looked like a task
                tyro.cli(command(words, console, task, act), args=list(words), prog="ppga train")
                return
        choose("preset", preset, PRESETS)
        machine.check_devices()
        if not act:
            make_algorithm(task, config)
            return
        if dry_run or (preset == "paper" and resume is None):
            expected = estimate(make_algorithm(task, config), config, budget)
            if dry_run:
                _show_plan(console, task, config, budget, expected)
                return
            display.say(_cost(expected))
        with exit_on_signals():
            if resume is not None:
                outcome = continue_run(resume, budget=budget, display=display, cluster=cluster)
            else:
                folder = output or Path("runs") / f"{task}-{config.algorithm}-{datetime.now():%Y%m%d-%H%M%S}"
                outcome = train(task, config, budget=budget, output=folder, display=display, cluster=cluster)
        if leads():
            show(console, outcome)

    return run


def make_display(console: Console, quiet: bool = False) -> Display:
    """A live picture on a terminal, plain lines elsewhere."""
    return Picture(console) if console.is_terminal and not quiet else Lines(console, quiet)


def show(console: Console, outcome: Outcome) -> None:
    """The archive, its numbers, and what to do next."""
    archive = outcome.archive
    elites = archive.elites
    # a task in a file has to be named again
    name = archive.description["task"]["name"]
    word = word_for(name)
    own = "" if word == name else os.path.relpath(word)
    again = f"ppga train{' ' + own if own else ''} --resume {outcome.folder}"
    if len(archive):
        console.print(heatmap(archive.shape, elites["index"], elites["objective"]))
        measures = ", ".join(archive.measure_names)
        best = archive.elite(archive.best())
        place = " ".join(f"{value:.2f}" for value in best["measures"])
        console.print(
            f"{len(archive)} of {archive.cells} cells ({archive.coverage:.0%}), "
            f"QD-score {archive.qd_score:,.0f} (offset {archive.qd_offset:g}), "
            f"best {best['objective']:,.0f} at {place} ({measures}), "
            f"mean {elites['objective'].mean():,.0f}",
            soft_wrap=True,
            highlight=False,
        )
    if outcome.folder:
        console.print(
            f"\n  watch      ppga view {outcome.folder}{' --task ' + own if own else ''}"
            f"\n  picture    {outcome.folder / 'heatmap.png'}"
            f"\n  metrics    {outcome.folder / 'metrics.jsonl'}"
            f"\n  archive    {outcome.folder / 'archive'}    ppga.load_archive({str(outcome.folder)!r})"
            f"\n  longer     {again} --minutes {_twice(outcome)}\n",
            soft_wrap=True,
            highlight=False,
        )
    if outcome.interrupted:
        console.print(f"stopped early. Go on with: {again}", soft_wrap=True)
        sys.exit(128 + outcome.interrupted)


def _twice(outcome: Outcome) -> int:
    """Twice the minutes a run has taken."""
    seconds = float((outcome.record or {}).get("wall_time", 1800.0))
    return math.ceil(2 * seconds / 60)


def _named(word: str) -> str | None:
    """The task that a word of the command line names, if it does."""
    if word in (*TASKS, "sphere"):
        return word
    return find(word) if ".py:" in word else None


def _after(option: str, words: Sequence[str]) -> str | None:
    """The word that follows an option, as `--option word` or `--option=word`."""
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            return words[number + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def _meeting(words: Sequence[str]) -> Cluster:
    """Where several processes meet; numbers that are none are for others to tell."""
    counts = [_after(option, words) for option in ("--workers", "--rank")]
    workers, rank = (int(word) if word and word.isdigit() else None for word in counts)
    return Cluster(_after("--address", words), workers, rank)


def _check_resumed(
    run: Path,
    task: str | None,
    old_task: str | None,
    old: PPGAConfig,
    new: PPGAConfig,
    output: Path | None,
    with_preset: bool,
) -> None:
    """Refuse settings that the run was not begun with."""
    if with_preset:
        raise InputError("a resumed run keeps its settings; leave --preset out.")
    if task is not None and task != old_task:
        raise InputError(f"{run} is a run of {old_task}, not of {task}.")
    if output is not None and output != run:
        raise InputError(f"a resumed run stays in its folder, {run}; leave --output out.")
    changed = [f"{name} (was {before!r}, now {after!r})" for name, before, after in differences(old, new)]
    if changed:
        raise InputError(
            f"a resumed run keeps its settings; only its budget may change. Different: {', '.join(changed)}."
        )


def _cost(expected: Estimate) -> str:
    if expected.iteration_seconds is None:
        return "time: not known beforehand"
    total = "" if expected.seconds is None else f"; the whole run about {span(expected.seconds)}"
    return f"on this machine an iteration takes about {span(expected.iteration_seconds)}{total}"


def _show_plan(console: Console, task: str, config: PPGAConfig, budget: Budget, expected: Estimate) -> None:
    """The resolved settings and what they will take."""
    table = Table(box=SIMPLE, title=f"{config.algorithm} on {task}", show_header=False)

    idle = {"ppo", "td3", "sac"} - set(ALGORITHMS[config.algorithm].sections)  # of learners it does not use

    def rows(prefix: str, part: Any) -> None:
        for item in dataclasses.fields(part):
            value = getattr(part, item.name)
            if item.name in idle:
                continue
            if dataclasses.is_dataclass(value):
                rows(f"{prefix}{item.name}.", value)
            else:
                table.add_row(f"{prefix}{item.name}", str(value))

    rows("", config)
    table.add_section()
    rows("budget.", budget)
    table.add_section()
    table.add_row("numbers in a policy", f"{expected.parameters:,}")
    table.add_row("control steps an iteration", f"about {expected.iteration_steps:,}")
    table.add_row("memory, archives full", f"{expected.archive_bytes / 2**20:,.0f} MiB")
    table.add_row("memory, learning", f"{expected.learning_bytes / 2**20:,.0f} MiB")
    iterations = "not known" if expected.iterations is None else f"{expected.iterations:,}"
    table.add_row("iterations", f"about {iterations}")
    console.print(table)
    console.print(_cost(expected), highlight=False)
