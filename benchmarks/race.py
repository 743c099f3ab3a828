"""Loops of ppga and of other libraries on one task, with several seeds, and their archives in fresh episodes.

Each loop runs in its own process, so that start and memory are its own. What is complete in the folder of the
race is not run again.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from ppga import machine
from ppga.analysis import metrics, plots
from ppga.analysis.runs import Run
from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVE_FILE
from ppga.archives.heatmaps import new_axes
from ppga.errors import InputError, check_choice
from ppga.machine import installed
from ppga.storage import make_folder, plain_name, read_json, write_json
from ppga.tasks import task_argument

from benchmarks import fresh
from benchmarks.fresh import Scores
from benchmarks.harness import Result, environment, format_value
from benchmarks.loops import HISTORY_FILE, LIBRARY_LOOPS, LOOPS, PPGA_LOOPS, History

DEFAULT_LOOPS = ("ppga", "pga-me", "map-elites", *LIBRARY_LOOPS)
NEED_QDAX = ("qdax map-elites", "qdax pga-me", "qdax dcrl-me", "ascii-me")
SETTINGS_FILE, IMAGE_FILE = "race.json", "race.png"


@dataclass(frozen=True)
class Settings:
    """What all loops of a race have in common.

    Attributes:
        task: name of the task.
        preset: name of the preset.
        minutes: minutes of each loop.
        episodes: fresh episodes of each elite.
        parallel: loops that run at once, each on one core; 1 for one loop at a time on all cores.
    """

    task: str
    preset: str
    minutes: float
    episodes: int
    parallel: int

    def claim(self, folder: Path) -> None:
        """Make the folder of a race with these settings; an InputError if it is that of another race."""
        file = folder / SETTINGS_FILE
        if file.exists():
            before = read_json(file)
            for name, value in asdict(self).items():
                if not isinstance(before, dict) or before.get(name) != value:
                    given = before.get(name) if isinstance(before, dict) else before
                    raise InputError(
                        f"{folder} is of a race with --{name} {given}, and this one has --{name} {value}: "
                        "give the same, or another --output."
                    )
        try:
            make_folder(folder)
            write_json(file, asdict(self))
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}.") from None


@dataclass(frozen=True)
class Entry:
    """A loop with a seed.

    Attributes:
        loop: name of the loop.
        seed: random seed.
        folder: folder of its files.
    """

    loop: str
    seed: int
    folder: Path

    @property
    def complete(self) -> bool:
        """Whether the loop has run, and its elites have played all fresh episodes."""
        return (self.folder / HISTORY_FILE).is_file() and fresh.complete(self.archive(), self.folder)

    def archive(self) -> Archive:
        """The archive, left on the disk."""
        return load_archive(self.folder / ARCHIVE_FILE, mapped=True)

    def outcome(self) -> "Outcome":
        """What came of it, from its files."""
        archive = self.archive()
        scores = fresh.archived(archive), fresh.reevaluated(archive, self.folder)
        return Outcome(History.load(self.folder), *scores)


@dataclass(frozen=True)
class Outcome:
    """What came of a loop with a seed.

    Attributes:
        history: course of the loop.
        archived: figures of the archive by the rewards that it holds.
        reevaluated: figures of the archive by fresh episodes.
    """

    history: History
    archived: Scores
    reevaluated: Scores


def bench_race(
    settings: Settings,
    loops: Sequence[str],
    seeds: int,
    folder: Path,
    image: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run all loops with all seeds, except for those that the folder has already.

    Args:
        settings: what the loops have in common.
        loops: names of the loops; `DEFAULT_LOOPS` if there are none. Loops whose package is not installed are
            left out.
        seeds: each loop runs with the seeds 1 to this number.
        folder: folder of the race.
        image: file of the figure of QD-score over time; in the folder by default.
        show: called with messages about the progress.
    """
    chosen = [check_choice("loop", loop, LOOPS) for loop in dict.fromkeys(loops)] or list(DEFAULT_LOOPS)
    available = [loop for loop in chosen if installed("qdax") or loop not in NEED_QDAX]
    if not available:
        raise InputError(f"{', '.join(chosen)}: QDax is not installed; pip install 'ppga[qdax]'")
    cores = _cores(settings.parallel)
    settings.claim(folder)
    print(f"archives are kept in {folder}", file=sys.stderr)
    entries = {
        loop: [Entry(loop, seed, folder / f"{plain_name(loop)}-{seed}") for seed in range(1, seeds + 1)]
        for loop in available
    }
    by_seed = [entry for same_seed in zip(*entries.values(), strict=True) for entry in same_seed]
    _run_all(by_seed, settings, cores, show)
    outcomes = {loop: [entry.outcome() for entry in own] for loop, own in entries.items()}
    plot(outcomes, settings.task, image or folder / IMAGE_FILE)
    return figures(outcomes, settings.task)


def _cores(parallel: int) -> list[int]:
    """The cores of loops that run at once; none if a single loop has all cores."""
    if parallel == 1:
        return []
    if not hasattr(os, "sched_setaffinity"):
        raise InputError(f"--parallel {parallel} needs an operating system that pins processes to cores.")
    cores = sorted(os.sched_getaffinity(0))[: machine.visible_cores()]
    if len(cores) < parallel:
        raise InputError(
            f"--parallel {parallel} needs as many cores, one for each loop; {len(cores)} can be used."
        )
    return cores[:parallel]


def _run_all(
    entries: Sequence[Entry], settings: Settings, cores: Sequence[int], show: Callable[[str], None]
) -> None:
    """Run all entries that are not complete; a failure is raised when all others have run."""
    missing = [entry for entry in entries if not entry.complete]
    processes = Processes()
    done, lock, free = len(entries) - len(missing), threading.Lock(), iter(cores)

    def pin() -> None:
        for core in free:  # the first one that no thread has taken
            os.sched_setaffinity(0, {core})  # of this thread, and of the processes that it starts
            break

    def run(entry: Entry) -> None:
        nonlocal done

        def say(message: str) -> None:
            show(f"{done} of {len(entries)} done; {entry.loop}, seed {entry.seed}: {message}")

        _run(entry, settings, processes, say)
        with lock:
            done += 1

    failures = []
    with ThreadPoolExecutor(settings.parallel, initializer=pin) as pool:
        try:
            for future in as_completed([pool.submit(run, entry) for entry in missing]):
                if isinstance(error := future.exception(), InputError):
                    failures.append(str(error))
                else:
                    future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    if failures:
        folder = entries[0].folder.parent
        raise InputError(f"{'; '.join(failures)}; --output {folder} runs only what is not complete.")


class Processes:
    """Processes of several threads, which can be stopped together."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self._stopped = False

    def add(self, process: subprocess.Popen[str]) -> None:
        """Add a process; it is killed if the others were stopped while it started."""
        self._started.append(process)
        if self._stopped:
            process.kill()

    def stop(self) -> None:
        """Kill all processes, and those that are added later; what they have written stays valid."""
        self._stopped = True
        for process in self._started:
            process.kill()


def _run(entry: Entry, settings: Settings, processes: Processes, say: Callable[[str], None]) -> None:
    """Run an entry in its own process."""
    make_folder(entry.folder)
    task = task_argument(settings.task)
    words = (
        entry.loop, task, settings.preset, entry.seed, settings.minutes, time.time(), settings.episodes,
        entry.folder.resolve(),
    )  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.loops", *map(str, words)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        ) as process,
    ):
        processes.add(process)
        assert process.stdout is not None
        for text in process.stdout:
            line: dict[str, Any] = json.loads(text)
            if "qd_score" in line:
                say(f"QD-score {line['qd_score']:,.0f} as archived after {line['seconds']:.0f} s")
            else:
                say(f"{line['evaluated']:,} of {line['elites']:,} elites re-evaluated")
        if process.wait():
            errors.seek(0)
            last = "".join(errors.read().strip().splitlines()[-1:])
            code = process.returncode
            raise InputError(f"{entry.loop} with seed {entry.seed} ended with exit code {code}: {last}")


# Figures.


def figures(outcomes: Mapping[str, Sequence[Outcome]], task: str) -> list[Result]:
    """Means over the seeds of every loop with their intervals, and ratios to a reference.

    The reference is the other library's loop with the highest re-evaluated QD-score; the goal of the race is
    its mean QD-score as archived in the end.
    """
    libraries = {loop: own for loop, own in outcomes.items() if loop not in PPGA_LOOPS}
    candidates = libraries or outcomes
    reference = max(
        candidates, key=lambda loop: np.mean([each.reevaluated.qd_score for each in candidates[loop]])
    )
    goal = float(np.mean([each.history.scores[-1] for each in outcomes[reference]]))
    base = _values(outcomes[reference], goal)
    results = []
    for loop, own in outcomes.items():
        for name, (values, unit) in _values(own, goal).items():
            value, reference_value = float(np.mean(values)), float(np.mean(base[name][0]))
            comparable = loop != reference and "not reached" not in unit and reference_value != 0
            interval = None
            if len(values) > 1:
                low, high = metrics.bootstrap(values)
                interval = float(low), float(high)
            results.append(
                Result(
                    f"{loop}: {name}/{task}", value, unit, value / reference_value if comparable else None,
                    reference if comparable else None, interval,
                )
            )  # fmt: skip
    return results


def _values(outcomes: Sequence[Outcome], goal: float) -> dict[str, tuple[list[float], str]]:
    """Figures of a loop with each seed, and their unit, by name.

    Where the goal was not reached, its seconds are those of the loop.
    """
    histories = [each.history for each in outcomes]
    until = [history.seconds_until(goal) for history in histories]
    missed = until.count(None)
    values = {
        "first iteration": ([history.seconds[0] for history in histories], "s"),
        "end": ([history.seconds[-1] for history in histories], "s, including the last iteration"),
        "speed": ([history.speed for history in histories], "steps/s"),
        "peak memory": ([history.peak or float("nan") for history in histories], "GiB"),
        f"until {goal:,.0f} archived": (
            [
                history.seconds[-1] if seconds is None else seconds
                for history, seconds in zip(histories, until, strict=True)
            ],
            f"s, not reached by {missed} of {len(until)}" if missed else "s",
        ),
    }
    for kind in ("reevaluated", "archived"):
        rows = [astuple(getattr(each, kind)) for each in outcomes]
        for column, name in zip(zip(*rows, strict=True), SCORE_NAMES, strict=True):
            values[f"{KINDS[kind]} {name}"] = [*column], SCORE_NAMES[name]
    return values


SCORE_NAMES = {"QD-score": "", "coverage": "share of cells", "best": "reward", "mean": "reward"}
"""Names of the fields of `Scores`, and their units."""
KINDS = {"reevaluated": "re-evaluated", "archived": "archived"}


def race_table(results: Sequence[Result], title: str) -> Group:
    """Tables with one row for each loop: its scores, as re-evaluated and as archived, and its speed.

    Means over the seeds, and intervals in brackets; "> seconds" if not all seeds reached the goal.
    """
    groups: dict[str, list[Result]] = {kind: [] for kind in (*KINDS.values(), "")}
    for result in results:
        heading = result.name.partition(": ")[2]
        kind = next((kind for kind in KINDS.values() if heading.startswith(kind)), "")
        groups[kind].append(result)
    notes = {
        "": "speed and memory",
        "re-evaluated": "re-evaluated in fresh episodes",
        "archived": "as archived, for comparison",
    }
    return Group(*(_table(own, f"{title}; {notes[kind]}", f"{kind} ") for kind, own in groups.items()))


def _table(results: Sequence[Result], title: str, prefix: str) -> Table:
    """A table with one row for each loop, and one column for each figure; their names lose the prefix."""
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        loop, _, name = result.name.rpartition("/")[0].partition(": ")
        name, unit = name.removeprefix(prefix), result.unit.partition(",")[0]
        text = ("> " if "not reached" in result.unit else "") + format_value(result.value)
        if result.interval is not None:
            text += "\n[{}, {}]".format(*map(format_value, result.interval))
        cells.setdefault(loop, {})[f"{name}, {unit}" if unit else name] = text
    headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for loop, row in cells.items():
        table.add_row(loop, *(row.get(heading, "") for heading in headings))
    return table


def plot(outcomes: Mapping[str, Sequence[Outcome]], task: str, file: Path) -> None:
    """Write a figure of QD-score over minutes: as archived, and in the end as re-evaluated.

    Lines and points are means over the seeds; bands and bars are their 95% intervals.
    """
    groups = {
        loop: [
            Run(
                path=file, task=task, algorithm=loop, seed=seed, archive=None, corrected=None,
                evaluation=None, settings={}, metrics=[
                    {"wall_time": seconds, "qd_score": score}
                    for seconds, score in zip(each.history.seconds, each.history.scores, strict=True)
                ],
            )
            for seed, each in enumerate(own, start=1)
        ]
        for loop, own in outcomes.items()
    }  # fmt: skip
    axes = plots.curve(groups, "qd_score", "wall_time", new_axes(8.0))
    for line, own in zip(axes.get_lines(), outcomes.values(), strict=False):
        scores = np.array([each.reevaluated.qd_score for each in own])
        minutes = np.mean([each.history.seconds[-1] for each in own]) / 60
        low, high = metrics.bootstrap(scores)
        bar = None if len(own) == 1 else [[scores.mean() - low], [high - scores.mean()]]
        axes.errorbar(minutes, scores.mean(), yerr=bar, color=line.get_color(), marker="o", capsize=3)
    axes.set_title(f"{task}: lines as archived, points re-evaluated in fresh episodes", fontsize="medium")
    try:
        plots.save(axes, file)
    except OSError as error:
        raise InputError(f"cannot write to {file}: {error.strerror}.") from None
