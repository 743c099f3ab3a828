"""Studies on SLURM: a job array, one run each, that goes on where it was after being preempted."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

GRACE = 120
"""Seconds before the time limit at which a run is told to write its checkpoint."""


def script(words: Sequence[str], runs: int, minutes: float | None, cores: int, folder: Path) -> str:
    """An sbatch script that runs a study's runs, each as a job of an array.

    Args:
        words: of the study's command, without `ppga`.
        runs: how many there are.
        minutes: that one takes; None if that is not known, for the partition's own limit.
        cores: of each.
        folder: the study's.
    """
    limit = [] if minutes is None else [f"#SBATCH --time={math.ceil(minutes) + 10}"]
    study = shlex.join(["ppga", *words])
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=ppga-study",
            f"#SBATCH --array=0-{runs - 1}",
            f"#SBATCH --cpus-per-task={cores}",
            *limit,
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"#SBATCH --signal=B:TERM@{GRACE}",
            f"#SBATCH --output={folder}/slurm-%A_%a.log",
            "",
            "# A run that is preempted, or reaches the time limit, ends its iteration, writes a checkpoint",
            "# and is queued again; it goes on there. When all have ended, the report is written by:",
            f"#   {study}",
            f'{study} --only "$SLURM_ARRAY_TASK_ID" &',
            "run=$!",
            "trap 'kill -TERM $run' TERM",
            "wait $run; code=$?",
            "if [ $code -gt 128 ]; then wait $run; code=$?; fi  # the trap came first",
            "if [ $code -eq 130 ] || [ $code -eq 143 ]; then",
            '  exec scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
            "fi",
            "exit $code",
            "",
        ]
    )
