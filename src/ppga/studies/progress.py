"""How far the runs of a study are, as their files say, and how long the rest will take."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppga.analysis.corrected import read_evaluation
from ppga.archives.files import EVALUATION_FILE
from ppga.errors import InputError
from ppga.runs.build import make_algorithm
from ppga.runs.estimate import estimate
from ppga.runs.folder import RunFolder, read_metrics
from ppga.studies.plan import Study, StudyRun, parse_system

CORRECTION_SECONDS = 60.0
"""Approximate duration of the re-evaluation of a hundred elites."""


def is_finished(run: StudyRun, study: Study) -> bool:
    """Whether a run has used up its budget, and its elites are re-evaluated if the study asks for that."""
    files = run.files
    last = last_metrics(run.folder) if files.config.exists() else None
    if last is None:
        return False
    corrected = files.archive.parent / EVALUATION_FILE
    up_to_date = (
        corrected.exists()
        and corrected.stat().st_mtime >= files.archive.stat().st_mtime
        and read_evaluation(corrected).get("episodes") == study.episodes
    )
    complete = up_to_date or not study.corrects(run) or not last["elites"]
    return _budget_share(run, study, last) >= 1 and complete


def exceeded_budget(run: StudyRun, study: Study) -> bool:
    """Whether a run has used more than its budget: it was used up before the last iteration started."""
    metrics = run.files.metrics
    lines = list(read_metrics(metrics)) if metrics.exists() else []
    return len(lines) > 1 and _budget_share(run, study, lines[-2]) >= 1


def has_elites(run: StudyRun) -> bool:
    """Whether a run that has ended has any elites; a FileNotFoundError if its metrics are missing."""
    lines = list(read_metrics(run.files.metrics))
    return bool(lines) and lines[-1]["elites"] > 0


def seconds_used(folder: Path) -> float:
    """Wall time of the run in a folder so far."""
    last = last_metrics(folder)
    return 0.0 if last is None else float(last["wall_time"])


def last_metrics(folder: Path) -> dict[str, Any] | None:
    """The last line of a run's metrics; None if there is none."""
    metrics = RunFolder(folder).metrics
    lines = list(read_metrics(metrics)) if metrics.exists() else []
    return lines[-1] if lines else None


def expected_seconds(runs: Sequence[StudyRun], study: Study) -> float | None:
    """Duration of the rest of these runs, by their minutes or by measuring this machine; None if unknown."""
    complete: dict[tuple[str, str], float | None] = {}  # task, system -> seconds of a complete run
    total = 0.0
    for run in runs:
        kind = run.task, run.system
        if kind not in complete:
            complete[kind] = 60 * study.budget.minutes if study.budget.minutes else _estimate(run, study)
        seconds = complete[kind]
        if seconds is None:
            return None
        total += max(0.0, seconds - seconds_used(run.folder))
        total += CORRECTION_SECONDS if study.corrects(run) else 0.0
    return total


def _estimate(run: StudyRun, study: Study) -> float | None:
    """Estimated duration of a complete run; None if unknown."""
    try:
        config = parse_system(run.system).config(run.task, study.preset)
        return estimate(make_algorithm(run.task, config), study.budget_of(run)).seconds
    except InputError:  # the run itself reports it
        return 0.0


def _budget_share(run: StudyRun, study: Study, line: Mapping[str, Any]) -> float:
    """Share of its budget that a run had used up when it wrote a line of metrics."""
    return study.budget_of(run).spent(
        line["iteration"], line["wall_time"] / 60, line["env_steps"], line["evaluations"]
    )
