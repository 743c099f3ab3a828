"""Studies on SLURM: a job array with one run for each job, which is resumed where it was interrupted."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ppga.errors import InputError

GRACE = 120
"""Seconds before the time limit at which a run is told to write its checkpoint."""
MARGIN = 30
"""Seconds before the time limit at which a job is queued again at the latest: SLURM kills all of it then."""
ATTEMPTS = 3
"""Attempts of a job, one after the other, in which its run may make no progress."""
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
# checkpoint, and the job is queued again to resume it. The job waits at most {patience} seconds for that: a
# longer iteration is lost, and the run resumes from the checkpoint before it. A job that makes no progress in
# {attempts} attempts fails. A job that is cancelled or preempted gets TERM; SLURM itself queues it again if
# it was preempted.
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
        words: of the study's command, without `ppga`.
        runs: number of runs.
        minutes: that a run takes; None if that is not known, for the partition's own limit.
        cores: of each job.
        folder: the study's.

    Raises:
        InputError: the folder or another word cannot be written in a script.
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
    """A path for the log files as it is written between double quotes in an #SBATCH line."""
    path = str(folder)
    if "\\" in path:  # which would end the replacement of %A and %a
        raise InputError(
            f"SLURM cannot write its log files to {path!r}: choose an --output without a backslash."
        )
    return path.replace("%", "%%").replace('"', '\\"')
