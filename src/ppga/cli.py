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
BENCHMARKS = ("physics",)


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


def demo(episodes: int = 16, seed: int = 0, threads: int | None = None) -> None:
    """See a random and a scripted policy on a robot.

    Example: ppga demo --episodes 32

    Args:
        episodes: episodes each policy plays.
        seed: seed of starts and of the random policy.
        threads: threads of the physics; all visible cores by default.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must lie in [0, 2^32), got {seed}.")
    machine.check_devices()
    from ppga.demo import run

    run(at_least_one("--episodes", episodes), seed, threads, console)


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
    environments: int = 1024,
    steps: int = 50,
    rounds: int = 5,
    threads: int | None = None,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure speed on this machine, as ratios within one run.

    Example: ppga bench physics --task ant --json ant.json

    Args:
        what: physics (control steps/s of the engines beside the bare library).
        task: a task, or all.
        environments: how many run at once.
        steps: control steps in one timed call.
        rounds: how often each thing is timed; medians are reported.
        threads: threads of MuJoCo, here and in the bare library; all visible cores by default.
        json: also write the results to this file.
    """
    choose("benchmark", what, BENCHMARKS)
    for option, value in (("--environments", environments), ("--steps", steps), ("--rounds", rounds)):
        at_least_one(option, value)
    if json is not None:
        try:
            json.open("a").close()
        except OSError as error:
            raise InputError(f"cannot write to {json}: {error.strerror}.") from None
    machine.check_devices()
    from ppga.bench.harness import table, write_json
    from ppga.bench.physics import bench_physics
    from ppga.tasks import TASKS

    names = list(TASKS) if task == "all" else [choose("task", task, [*TASKS, "all"])]
    results = []
    for number, name in enumerate(names, start=1):
        with console.status(f"measuring {name} ({number} of {len(names)})"):
            new = bench_physics(name, environments, steps, rounds, threads)
        console.print(table(new, title=f"{name}, {environments} environments: medians of {rounds} rounds"))
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
