"""The command line. Heavy imports stay inside the commands, so that help answers at once."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from ppga import machine
from ppga.errors import InputError, at_least_one, choose

console = Console()
BENCHMARKS = ("physics", "vppo", "iteration")


def tasks() -> None:
    """List the tasks with their sizes."""
    machine.check_devices()
    from ppga.tasks import TASKS, make_task

    table = Table(box=SIMPLE, caption="measures: each foot's share of time on the floor")
    for heading in ("task", "sees", "acts", "archive", "QD offset", "step", "measures"):
        table.add_column(heading, justify="left" if heading in ("task", "measures") else "right")
    for name in TASKS:
        task = make_task(name)
        table.add_row(
            name,
            str(task.observation_size),
            str(task.action_size),
            "x".join(map(str, task.archive_shape)),
            f"{task.qd_offset:g}",
            f"{1000 * task.control_dt:g} ms",
            ", ".join(task.measure_names),
        )
    console.print(table)


def demo(task: str = "halfcheetah", minutes: float = 5.0, seed: int = 0) -> None:
    """Train an archive for five minutes, and see how differently its elites walk.

    Example: ppga demo --task walker2d --minutes 10

    Args:
        task: the robot.
        minutes: how long to train.
        seed: of all randomness.
    """
    machine.check_devices()
    from ppga.demo import run, show_gaits
    from ppga.tasks import TASKS
    from ppga.training import make_display, show

    choose("task", task, TASKS)
    outcome = run(task, minutes, seed, make_display(console))
    if len(outcome.archive):
        show_gaits(outcome.archive, console)
    show(console, outcome)


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
    task: str = "all",
    preset: str = "laptop",
    environments: int | None = None,
    steps: int = 50,
    rounds: int = 5,
    threads: int | None = None,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure speed on this machine, as ratios within one run.

    Example: ppga bench physics --task ant --json ant.json

    Args:
        what: physics (control steps/s of the engines beside the bare library), vppo (training and judging
            steps/s beside what physics and updates alone would allow) or iteration (what PPGA spends on
            anything but simulating and learning).
        task: a task, or all.
        preset: settings of vppo and iteration.
        environments: how many run at once; 1,024 for physics, the preset's for vppo.
        steps: control steps in one timed call.
        rounds: how often each thing is timed, or iterations; medians are reported.
        threads: threads of MuJoCo, here and in the bare library; all visible cores by default.
        json: also write the results to this file.
    """
    choose("benchmark", what, BENCHMARKS)
    for option, value in (("--environments", environments), ("--steps", steps), ("--rounds", rounds)):
        if value is not None:
            at_least_one(option, value)
    if json is not None:
        try:
            json.open("a").close()
        except OSError as error:
            raise InputError(f"cannot write to {json}: {error.strerror}.") from None
    machine.check_devices()
    from ppga.bench.harness import table, write_json
    from ppga.tasks import TASKS

    names = list(TASKS) if task == "all" else [choose("task", task, [*TASKS, "all"])]
    results = []
    for number, name in enumerate(names, start=1):
        with console.status(f"measuring {name} ({number} of {len(names)})"):
            if what == "physics":
                from ppga.bench.physics import bench_physics

                new = bench_physics(name, environments or 1024, steps, rounds, threads)
            elif what == "vppo":
                from ppga.bench.learning import bench_vppo

                new = bench_vppo(name, preset, environments, steps, rounds, threads)
            else:
                from ppga.bench.learning import bench_iteration

                new = bench_iteration(name, preset, rounds, threads)
        console.print(table(new, title=f"{what}, {name}: medians of {rounds} rounds"))
        results += new
    if json is not None:
        write_json(results, json)


def _train(words: list[str]) -> Callable[..., None]:
    """The command `train`; a stand-in when another is called, which would not need what it imports."""
    if words[:1] == ["train"]:
        from ppga.training import command

        return command(words[1:], console)

    def train() -> None:
        """Train an archive of many good and different policies."""

    return train


def main() -> None:
    """Run the command line; a user's mistake ends in one plain message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    words = sys.argv[1:]
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"train": _train(words), "demo": demo, "tasks": tasks, "doctor": doctor, "bench": bench},
            prog="ppga",
            description="Quality-diversity reinforcement learning: archives of good, different policies.",
        )
    except InputError as error:
        print(f"ppga: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
