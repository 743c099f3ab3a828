"""Studies: several systems on several tasks with several seeds, and a report.

Each run is a process, so a failed run does not affect the other runs. A study can be stopped at any time; the
same command resumes it.
"""

from ppga.studies.plan import SYSTEMS, VARIANTS, Study, StudyRun, System, parse_system, plan_study
from ppga.studies.processes import execute
from ppga.studies.progress import is_finished
from ppga.studies.runner import run_study
from ppga.studies.slurm import count_attempt, write_script

__all__ = [
    "SYSTEMS",
    "VARIANTS",
    "Study",
    "StudyRun",
    "System",
    "count_attempt",
    "execute",
    "is_finished",
    "parse_system",
    "plan_study",
    "run_study",
    "write_script",
]
