"""Studies as job arrays of SLURM: the job script, and jobs that are queued again."""

import os
from pathlib import Path

from ppga.analysis.corrected import PARTIAL, evaluated
from ppga.distributed import slurm
from ppga.errors import InputError
from ppga.runs.checkpoints import last_iteration
from ppga.storage import read_json, write_json, write_text
from ppga.studies.plan import Study, StudyRun
from ppga.studies.processes import study_command
from ppga.studies.progress import CORRECTION_SECONDS


def write_script(study: Study, cores: int) -> Path:
    """Write an sbatch script with one job for each run to the study's folder, and return its path."""
    file = study.output / "study.sbatch"
    minutes = study.budget.minutes
    if minutes is not None and study.episodes:
        minutes += CORRECTION_SECONDS / 60
    folder = study.output.absolute()
    write_text(file, slurm.script(study_command(study), len(study.runs()), minutes, cores, folder))
    return file


def count_attempt(run: StudyRun) -> None:
    """Count the attempts of a job that SLURM queues again, since its run last made progress.

    Progress is a newer checkpoint, or more re-evaluated elites of the archive. A job that is submitted by
    hand starts a new count.

    Raises:
        InputError: there was no progress in the last `slurm.ATTEMPTS` attempts.
    """
    file = run.folder / ".attempts.json"
    partial = run.files.archive.with_name(PARTIAL)
    progress = [last_iteration(run.files.checkpoints), evaluated(partial)]
    attempts = 1
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and file.exists():
        before = read_json(file)
        attempts += before["attempts"] if progress <= before["progress"] else 0
    if attempts > slurm.ATTEMPTS:
        raise InputError(
            f"{run.folder} has made no progress in {slurm.ATTEMPTS} attempts: no new checkpoint and "
            "no further elite re-evaluated within its time limit. Submit it with more: sbatch --time=..."
        )
    write_json(file, {"progress": progress, "attempts": attempts})
