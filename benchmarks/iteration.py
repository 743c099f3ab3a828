"""Seconds of the phases of PPGA's iterations, in a real run with its files."""

import statistics
import tempfile
import time
from pathlib import Path

from ppga.config import Budget, LoggingConfig
from ppga.runs import Iteration, train
from ppga.runs.folder import RunFolder
from ppga.runs.writer import MAX_WRITING_SHARE, Writer

from benchmarks.harness import Result
from benchmarks.settings import ppga_config, without_reward_phase

WORK = ("jacobian", "evaluate", "confirm", "walk")
"""Phases of an iteration that simulate and learn; everything else is overhead."""
NEVER = 1e9
"""More seconds than a run has."""
CHECKPOINTS = 3
"""Checkpoints that are timed."""


def bench_iteration(task: str, preset: str, iterations: int, threads: int | None) -> list[Result]:
    """Seconds of each phase, and the share of the time that neither simulates nor learns.

    Checkpoints are written every half minute at most. So they are timed separately, and their share of the
    time is added.
    """
    config = without_reward_phase(ppga_config(preset, task)).replace(
        **{"simulation.threads": threads, "log.checkpoint_seconds": NEVER}
    )
    times: list[dict[str, float]] = []
    checkpoint_times: list[float] = []

    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        budget = Budget(iterations=iterations + 1)

        def watch(iteration: Iteration) -> None:
            times.append(iteration.record["times"])
            if iteration.stop:
                writer = Writer(folder, task, config, budget, iteration.algorithm, print)
                for _ in range(CHECKPOINTS):
                    begin = time.perf_counter()
                    writer.save(0.0)
                    checkpoint_times.append(time.perf_counter() - begin)
                writer.close()

        train(task, config, budget=budget, output=folder.path, callbacks=[watch])
    compiled = times[1:]  # the first iteration compiles
    checkpoint = statistics.median(checkpoint_times)
    interval = max(LoggingConfig().checkpoint_seconds, checkpoint / MAX_WRITING_SHARE)
    overhead = statistics.fmean(
        1 - sum(spent.get(phase, 0.0) for phase in WORK) / spent["total"] for spent in compiled
    ) + checkpoint / (checkpoint + interval)

    def median(phase: str) -> float:
        return statistics.median(spent.get(phase, 0.0) for spent in compiled)

    return [
        Result(f"iteration/{task}", median("total"), "s"),
        *(Result(f"{phase}/{task}", median(phase), "s") for phase in (*WORK, "archive", "log")),
        Result(f"checkpoint/{task}", checkpoint, "s"),
        Result(f"overhead/{task}", overhead, "share of an iteration"),
    ]
