"""All benchmarks that make sense on one machine, each in its own process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ppga.machine import installed
from ppga.tasks import task_argument

from benchmarks.harness import Result, environment, table

ROUNDS = ("--rounds", "2")
SHORT_RACE = (
    "--episodes", "4",
    "--loops", "ppga", "pga-me", "map-elites", "qdax pga-me", "qdax map-elites", "pyribs cma-mae",
)  # fmt: skip
"""Options of a race that shows that everything runs, and little more."""


def plan(task: str, preset: str, minutes: float) -> dict[str, tuple[str, ...]]:
    """Words after `python -m benchmarks` for each benchmark whose packages are installed.

    Args:
        task: name of the task.
        preset: name of the preset.
        minutes: minutes of each loop of the race.
    """
    of_task, with_preset = ("--task", task_argument(task)), ("--preset", preset)
    planned = {
        "start": ("start", *of_task, "--rounds", "1"),
        "physics": ("physics", *of_task, *ROUNDS, "--compare"),
        "vppo": ("vppo", *of_task, *ROUNDS, *with_preset, "--steps", "1000"),
        "iteration": ("iteration", *of_task, *ROUNDS, *with_preset),
        "view": ("view", *of_task),
        "memory": ("memory", *of_task, *with_preset),
        "race": ("race", *of_task, *with_preset, "--minutes", f"{minutes:g}", *SHORT_RACE),
    }
    if not installed("viser"):
        del planned["view"]
    return planned


def run_all(task: str, preset: str, minutes: float, console: Console) -> tuple[list[Result], bool]:
    """Run all benchmarks of a task, and print those results that have a reference; see `plan`.

    A benchmark that fails is reported, and the next one is run.

    Returns:
        All results, and whether no benchmark failed.
    """
    planned = plan(task, preset, minutes)
    results: list[Result] = []
    complete = True
    columns = TimeElapsedColumn(), BarColumn(20), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned))
        for name, words in planned.items():

            def show(line: str, name: str = name) -> None:
                progress.update(bar, description=f"{name}: {line}")

            show("starting")
            new, failure = run_part(words, show)
            progress.advance(bar)
            if failure:
                complete = False
                progress.console.print(f"{name} failed: {failure}", style="yellow", markup=False)
            results += new
    compared = [result for result in results if result.ratio is not None]
    console.print(table(compared, f"{task}, with references ({len(results)} figures in all: --json FILE)"))
    return results, complete


def run_part(words: tuple[str, ...], show: Callable[[str], None]) -> tuple[list[Result], str]:
    """Results of `python -m benchmarks WORDS`, and the reason if it failed.

    Args:
        words: see `plan`.
        show: called with every line that the process prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [sys.executable, "-m", "benchmarks", *words, "--json", str(file)]
        last = ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                show(last)
        if process.returncode:
            return [], last or f"exit code {process.returncode}"
        return [Result(**result) for result in json.loads(file.read_text())["results"]], ""
