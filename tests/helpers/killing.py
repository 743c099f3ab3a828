"""Starts a run, kills it again and again, then lets it end: `python -m helpers.killing FOLDER TASK TIMES`.

Children are forked from a process that has imported everything and computed nothing, so they start at once.
"""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import ppga

from helpers.runs import SPHERE


def start(run: Path, task: str, times: int) -> int:
    """Start a run, or resume it, in a child; return the child's process id."""
    child = os.fork()
    if child:
        return child
    if (run / "config.json").exists():
        ppga.resume(run)
    else:
        config, iterations = settings(task, times)
        ppga.train(task, config, budget=ppga.Budget(iterations=iterations), output=run)
    os._exit(0)


def settings(task: str, times: int) -> tuple[ppga.AlgorithmConfig, int]:
    """Settings of the run and its number of iterations; an iteration of the sphere takes a moment."""
    if task == "sphere":
        return SPHERE, 40 + 4 * times
    config, _ = ppga.preset("smoke", task)
    return replace(config, log=SPHERE.log), 20


def checkpoints(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoints").glob("0*.json"))


def main() -> None:
    folder, task, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.waitpid(start(folder / "undisturbed", task, times), 0)
    run, rng, killed = folder / "run", random.Random(2), 0
    while killed < times:
        before, child = checkpoints(run), start(run, task, times)
        early = rng.random() < 0.2  # while it starts
        while not early and checkpoints(run)[-1:] == before[-1:]:
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("the run ended before it was killed often enough")
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.5 if early else 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
    _, status = os.waitpid(start(run, task, times), 0)
    print(f"killed {killed} times")
    sys.exit(status)


if __name__ == "__main__":
    main()
