"""How long one waits for an answer, an import and a smallest run: each in a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Mapping

from ppga.bench.harness import Result, rates
from ppga.errors import InputError
from ppga.machine import installed
from ppga.tasks import word_for

OTHERS = {"brax.envs": "brax", "qdax.core.map_elites": "qdax", "ribs.schedulers": "ribs"}
"""Module that users of another package import -> the package."""
PYTHON, BARE = "python", "import jax, mujoco"
"""What commands and imports are held against: the interpreter alone, and what all of this is built upon."""
LIGHT = ("ppga --help", "ppga --version", "import ppga")
"""What should take hardly longer than the interpreter."""
SMALLEST = """
import ppga, ppga.tasks
name = ppga.tasks.find({word!r})
config, _ = ppga.preset("smoke", name)
ppga.train(name, config, budget=ppga.Budget(iterations=1))
"""


def bench_start(name: str, rounds: int) -> list[Result]:
    """Seconds of everything that a person waits for before a run is under way."""
    return waited(waits(name), rounds)


def waits(name: str) -> dict[str, tuple[str, ...]]:
    """What is waited for -> the words after `python`."""
    others = [f"import {module}" for module, package in OTHERS.items() if installed(package)]
    return {
        PYTHON: ("-c", "pass"),
        "ppga --help": ("-m", "ppga", "--help"),
        "ppga --version": ("-m", "ppga", "--version"),
        **{line: ("-c", line) for line in ("import ppga", BARE, "import ppga.runs", *others)},
        f"smallest run, an iteration/{name}": ("-c", SMALLEST.format(word=word_for(name))),
    }


def waited(waits: Mapping[str, tuple[str, ...]], rounds: int) -> list[Result]:
    """How long each takes, and how many times as long as what it is held against."""
    measured = rates({what: process(*words) for what, words in waits.items()}, rounds)
    seconds = {what: 1 / rate for what, rate in measured.items()}

    def result(what: str) -> Result:
        against = PYTHON if what in LIGHT else BARE
        if what in (PYTHON, BARE):
            return Result(what, seconds[what], "s")
        return Result(what, seconds[what], "s", seconds[what] / seconds[against], against)

    return [result(what) for what in waits]


def process(*words: str) -> Callable[[], int]:
    """Runs Python with these words to the end."""

    def work() -> int:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise InputError(f"python {' '.join(words)} ended with {done.returncode}: {said[-1:]}")
        return 1

    return work
