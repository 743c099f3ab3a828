"""Begins a run and kills it again and again, then lets it end: `python killing.py FOLDER TASK TIMES`.

Children are forked from a process that has imported everything and computed nothing, so they begin at once.
"""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import ppga
from ppga.runs import Budget

FOLDER, TASK, TIMES = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
CONFIG = replace(
    ppga.preset("smoke", TASK)[0], keeping=ppga.KeepingConfig(checkpoint_seconds=0.0, tensorboard=False)
)
ITERATIONS = 20
if TASK == "sphere":  # whose iterations are over in a moment
    CONFIG = replace(CONFIG, search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1))
    ITERATIONS = 40 + 4 * TIMES


def begin(run: Path) -> int:
    """A child that begins a run, or goes on with it."""
    child = os.fork()
    if child:
        return child
    if (run / "config.json").exists():
        ppga.resume(run)
    else:
        ppga.train(TASK, CONFIG, budget=Budget(iterations=ITERATIONS), output=run)
    os._exit(0)


def checkpoints(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoints").glob("0*.json"))


def main() -> None:
    os.waitpid(begin(FOLDER / "whole"), 0)
    run, dice, killed = FOLDER / "run", random.Random(2), 0
    while killed < TIMES:
        before, child = checkpoints(run), begin(run)
        early = dice.random() < 0.2  # while it begins
        while not early and checkpoints(run)[-1:] == before[-1:]:
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("it ended before it was killed often enough")
            time.sleep(0.001)
        time.sleep(dice.uniform(0.0, 0.5 if early else 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
    _, status = os.waitpid(begin(run), 0)
    print(f"killed {killed} times")
    sys.exit(status)


main()
