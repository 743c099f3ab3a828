"""Seconds until an answer, an import or a smallest run is done, each in its own process."""

import subprocess
import sys
from collections.abc import Callable, Mapping

from ppga.errors import InputError
from ppga.machine import installed
from ppga.tasks import task_argument

from benchmarks.harness import Result, rates

LIBRARIES = {"brax.envs": "brax", "qdax.core.map_elites": "qdax", "ribs.schedulers": "ribs"}
"""Module that users of another library import -> its package."""
PYTHON, BASE_IMPORTS = "python", "import jax, mujoco"
"""The references: the interpreter alone, and the packages that ppga is built upon."""
LIGHT = ("ppga --help", "ppga --version", "import ppga")
"""What should take hardly longer than the interpreter."""
SMALLEST_RUN = """
import ppga, ppga.tasks
name = ppga.tasks.find({word!r})
config, _ = ppga.preset("smoke", name)
ppga.train(name, config, budget=ppga.Budget(iterations=1))
"""


def bench_start(task: str, rounds: int) -> list[Result]:
    """Seconds of everything that a user waits for before a run is under way."""
    return time_commands(commands(task), rounds)


def commands(task: str) -> dict[str, tuple[str, ...]]:
    """What is timed -> the words after `python`."""
    libraries = [f"import {module}" for module, package in LIBRARIES.items() if installed(package)]
    return {
        PYTHON: ("-c", "pass"),
        "ppga --help": ("-m", "ppga", "--help"),
        "ppga --version": ("-m", "ppga", "--version"),
        **{line: ("-c", line) for line in ("import ppga", BASE_IMPORTS, "import ppga.runs", *libraries)},
        f"smallest run, one iteration/{task}": ("-c", SMALLEST_RUN.format(word=task_argument(task))),
    }


def time_commands(commands: Mapping[str, tuple[str, ...]], rounds: int) -> list[Result]:
    """Seconds of each command, and their ratio to those of its reference."""
    measured = rates({name: process(*words) for name, words in commands.items()}, rounds)
    seconds = {name: 1 / rate for name, rate in measured.items()}

    def result(name: str) -> Result:
        if name in (PYTHON, BASE_IMPORTS):
            return Result(name, seconds[name], "s")
        reference = PYTHON if name in LIGHT else BASE_IMPORTS
        return Result(name, seconds[name], "s", seconds[name] / seconds[reference], reference)

    return [result(name) for name in commands]


def process(*words: str) -> Callable[[], int]:
    """A function that runs `python WORDS` and raises an InputError if that fails."""

    def work() -> int:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise InputError(f"python {' '.join(words)} ended with exit code {done.returncode}: {lines[-1:]}")
        return 1

    return work
