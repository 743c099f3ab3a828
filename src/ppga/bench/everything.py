"""All benchmarks that make sense on one machine: what they are, and each in a process of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ppga.bench.harness import Result
from ppga.machine import installed
from ppga.tasks import word_for

ROUNDS = ("--rounds", "2")


def parts(task: str, settings: str, minutes: float) -> dict[str, tuple[str, ...]]:
    """Benchmark -> the words after `ppga bench`, of those for which everything is installed."""
    of, preset = ("--task", word_for(task)), ("--preset", settings)
    every = {
        "start": ("start", *of, "--rounds", "1"),
        "physics": ("physics", *of, *ROUNDS, "--compare"),
        "vppo": ("vppo", *of, *ROUNDS, *preset, "--steps", "1000"),
        "iteration": ("iteration", *of, *ROUNDS, *preset),
        "view": ("view", *of),
        "memory": ("memory", *of, *preset),
        "race": ("race", *of, *preset, "--minutes", f"{minutes:g}"),
    }
    return {what: words for what, words in every.items() if what != "view" or installed("viser")}


def bench_part(words: tuple[str, ...], say: Callable[[str], None]) -> tuple[list[Result], str]:
    """The results of `ppga bench WORDS`, and why there are none if it failed.

    Args:
        words: see `parts`.
        say: called with every line that it prints.
    """
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "results.json"
        command = [sys.executable, "-m", "ppga", "bench", *words, "--json", str(file)]
        last = ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                say(last)
        if process.returncode:
            return [], last or f"ended with {process.returncode}"
        return [Result(**one) for one in json.loads(file.read_text())["results"]], ""
