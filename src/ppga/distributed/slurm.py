"""Studies on SLURM: a job array with one run in each job; an interrupted run is resumed."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ppga.errors import InputError

GRACE = 120
"""Seconds before the time limit at which a run gets the signal to write its checkpoint."""
MARGIN = 30
"""Seconds before the time limit at which a job is queued again at the latest; at the limit SLURM kills it."""
ATTEMPTS = 3
"""Consecutive attempts without progress after which a job fails."""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=ppga-study
#SBATCH --array=0-{last}
#SBATCH --cpus-per-task={cores}
{limit}#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{grace}
#SBATCH --output={log}

# {grace} seconds before the time limit, SLURM sends USR1. The run then ends its iteration and writes a
# checkpoint, and the job is queued again to resume it. The job waits at most {patience} seconds for the
# checkpoint: a longer iteration is lost, and the run resumes from the previous checkpoint. A job that makes
# no progress in {attempts} attempts fails. A job that is canceled or preempted gets TERM; SLURM itself queues
# it again if it was preempted.
# When all jobs have ended, this writes the report:
#   {study}

limit=far
waited=0
trap 'limit=near; kill -TERM $run' USR1
trap 'kill -TERM $run' TERM
requeue() {{ exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"; }}

{study} --only "$SLURM_ARRAY_TASK_ID" &
run=$!
while kill -0 $run 2>/dev/null; do
    if [ $limit = near ] && [ $((waited++)) -ge {patience} ]; then requeue; fi
    sleep 1
done
wait $run
code=$?
if [ $limit = near ] && [ $code -eq 143 ]; then requeue; fi
exit $code
"""


def script(words: Sequence[str], runs: int, minutes: float | None, cores: int, folder: Path) -> str:
    """An sbatch script that runs a study's runs, each as a job of an array.

    Args:
        words: words of the study's command, without `ppga`.
        runs: number of runs.
        minutes: duration of a run; None if it is unknown, for the partition's default time limit.
        cores: cores of each job.
        folder: folder of the study, for the log files.

    Raises:
        InputError: a word or the folder cannot be written in a script.
    """
    for word in words:
        if odd := re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", word):
            raise InputError(f"a script for SLURM cannot contain {odd.group()!r}, as in {word!r}.")
    return SCRIPT.format(
        last=runs - 1,
        cores=cores,
        limit="" if minutes is None else f"#SBATCH --time={math.ceil(minutes) + 10}\n",
        grace=GRACE,
        patience=GRACE - MARGIN,
        attempts=ATTEMPTS,
        log=f'"{_in_directive(folder)}/slurm-%A_%a.log"',
        study=shlex.join(["ppga", *words]),
    )


def _in_directive(folder: Path) -> str:
    """A path for the log files, escaped for double quotes in an #SBATCH line."""
    path = str(folder)
    if "\\" in path:  # SLURM would not replace %A and %a
        raise InputError(
            f"SLURM cannot write its log files to {path!r}: choose an --output without a backslash."
        )
    return path.replace("%", "%%").replace('"', '\\"')
