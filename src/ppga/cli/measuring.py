"""Commands about this machine: `doctor`, `bench`."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional

from ppga import machine
from ppga.cli.common import console
from ppga.errors import InputError, at_least_one, choose

if TYPE_CHECKING:
    from ppga.bench.harness import Result

BENCHMARKS = ("all", "start", "physics", "vppo", "iteration", "view", "memory", "race", "scale")
ONE_TASK = ("all", "start", "race")
"""Benchmarks that take minutes for a task, or tell the same of each: of one, unless others are named."""


def doctor(task: str = "halfcheetah", environments: int = 256, threads: int | None = None) -> None:
    """Show what this machine has, check the physics engines against each other, and time them.

    The first thing to run on a new machine, and what to paste when asking for help.

    Args:
        task: the robot to check and time with.
        environments: how many run at once when timing.
        threads: threads of the mujoco engine; all visible cores by default.
    """
    machine.check_devices()
    from ppga.doctor import run

    healthy = run(task, at_least_one("--environments", environments), threads, console)
    sys.exit(0 if healthy else 1)


def bench(
    what: Positional[str],
    task: str | None = None,
    preset: str = "laptop",
    environments: int | None = None,
    steps: int = 50,
    rounds: int = 5,
    threads: int | None = None,
    compare: bool = False,
    shape: tuple[int, ...] | None = None,
    minutes: float = 1.0,
    loops: tuple[str, ...] = (),
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure speed on this machine, as ratios within one run.

    Example: ppga bench physics --task ant --json ant.json

    Args:
        what: start (how long help, imports and a smallest run take), physics (control steps/s of the engines
            beside the bare library), vppo (training and judging steps/s beside what physics and updates alone
            would allow), iteration (what PPGA spends on anything but simulating and learning), view (how long
            a click in the viewer takes), memory (of full archives), race (time to a QD-score, beside loops of
            QDax and pyribs), scale (speed with more workers of Ray); or all but the last, in a quarter of an
            hour.
        task: a task, or all; by default walker2d for all, start and race, and every task for the others.
        preset: settings of vppo, iteration, scale, memory and race.
        environments: how many run at once; 1,024 for physics, the preset's for vppo and scale.
        steps: control steps in one timed call.
        rounds: how often each thing is timed, or iterations; medians are reported.
        threads: threads of MuJoCo, here and in the bare library; all visible cores by default.
        compare: with physics, measure MJX, Brax and Gymnasium too, where they are installed; takes minutes.
        shape: with memory, cells along each measure; the task's own by default.
        minutes: with race and all, of each loop.
        loops: with race, which ones; every loop whose library is installed by default.
        json: also write the results to this file.
    """
    choose("benchmark", what, BENCHMARKS)
    for option, value in (("--environments", environments), ("--steps", steps), ("--rounds", rounds)):
        if value is not None:
            at_least_one(option, value)
    if not 0 < minutes < math.inf:
        raise InputError(f"--minutes must be positive, got {minutes}.")
    if json is not None:
        try:
            json.open("a").close()
        except OSError as error:
            raise InputError(f"cannot write to {json}: {error.strerror}.") from None
    machine.check_devices()
    from ppga.bench import learning, memory, physics, race, scale, start, viewer
    from ppga.bench.harness import table, write_json
    from ppga.tasks import TASKS, find

    benchmarks: dict[str, Callable[[str, Callable[[str], None]], list[Result]]] = {
        "start": lambda name, _: start.bench_start(name, rounds),
        "physics": lambda name, _: physics.bench_physics(
            name, environments or 1024, steps, rounds, threads, compare
        ),
        "vppo": lambda name, _: learning.bench_vppo(name, preset, environments, steps, rounds, threads),
        "iteration": lambda name, _: learning.bench_iteration(name, preset, rounds, threads),
        "view": lambda name, _: viewer.bench_view(name, rounds),
        "memory": lambda name, _: memory.bench_memory(name, preset, shape),
        "race": lambda name, say: race.bench_race(name, preset, minutes, loops, say),
        "scale": lambda name, _: scale.bench_scale(name, preset, environments, rounds),
    }
    task = task or ("walker2d" if what in ONE_TASK else "all")
    names = list(TASKS) if task == "all" else [find(task)]
    results: list[Result] = []
    well = True
    for number, name in enumerate(names, start=1):
        if what == "all":
            new, whole = _everything(name, preset, minutes)
            held, well = [result for result in new if result.ratio is not None], well and whole
            console.print(
                table(held, title=f"{name}, beside others ({len(new)} figures in all: --json FILE)")
            )
        else:
            with console.status(f"measuring {name} ({number} of {len(names)})") as status:
                new = benchmarks[what](name, status.update if console.is_terminal else console.print)
            if what == "race":
                console.print(race.table(new, title=f"{name}: {minutes:g} minutes a loop"))
            else:
                console.print(table(new, title=f"{what}, {name}: medians of {rounds} rounds"))
        results += new
    if json is not None:
        write_json(results, json)
    if not well:
        sys.exit(1)


def _everything(name: str, preset: str, minutes: float) -> "tuple[list[Result], bool]":
    """All benchmarks of one task, and whether none failed."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from ppga.bench.everything import bench_part, parts

    planned = parts(name, preset, minutes)
    results, whole = [], True
    columns = TimeElapsedColumn(), BarColumn(20), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned))
        for what, words in planned.items():

            def say(line: str, what: str = what) -> None:
                progress.update(bar, description=f"{what}: {line}")

            say("begins")
            new, failure = bench_part(words, say)
            progress.advance(bar)
            if failure:
                whole = False
                progress.console.print(f"{what} failed: {failure}", style="yellow", markup=False)
            results += new
    return results, whole
