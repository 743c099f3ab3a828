"""One page about one run or many: self-contained HTML, and its figures as PNG and SVG."""

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from ppga.analysis import film, gaits, metrics, plots
from ppga.analysis.runs import Run, read_runs
from ppga.archives import maps
from ppga.errors import InputError
from ppga.runs.folder import FIGURES
from ppga.storage import plain_name, replacing, write_text
from ppga.tasks import is_known, sample

if TYPE_CHECKING:
    import pandas

PAPER = {
    "ppga": {
        "humanoid": (0.52, 8324),
        "walker2d": (0.39, 4702),
        "halfcheetah": (0.58, 8919),
        "ant": (0.34, 7328),
    },
    "pga-me": {
        "humanoid": (0.39, 446),
        "walker2d": (0.38, 1621),
        "halfcheetah": (0.31, 4644),
        "ant": (0.37, 4571),
    },
    "sep-cma-mae": {
        "humanoid": (0.42, 498),
        "walker2d": (0.64, 2326),
        "halfcheetah": (0.61, 228),
        "ant": (0.30, 1629),
    },
    "qdpg": {
        "humanoid": (0.26, 412),
        "walker2d": (0.35, 1490),
        "halfcheetah": (0.28, 359),
        "ant": (0.25, 78),
    },
    "cma-maega-td3-es": {
        "humanoid": (0.21, 352),
        "walker2d": (0.33, 1025),
        "halfcheetah": (0.56, 2438),
        "ant": (0.12, 1020),
    },
}
"""Corrected coverage and best of Batra et al., ICLR 2024. Its QD-scores carry an offset it does not print."""


@dataclass
class _Page:
    """Grows as figures are drawn."""

    folder: Path
    body: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def heading(self, text: str, level: int = 2) -> None:
        self.body.append(f"<h{level}>{html.escape(text)}</h{level}>")

    def table(self, frame: "pandas.DataFrame") -> None:
        self.body.append(frame.to_html(index=False, na_rep="", border=0, justify="left"))

    def _file(self, name: str) -> Path:
        """Where a picture goes; a task's name is whatever an archive says."""
        return self.folder / "figures" / plain_name(name)

    def figure(self, name: str, caption: str, draw: Callable[[], Axes]) -> None:
        """Draw a figure; what cannot be drawn is said, and the rest still comes."""
        try:
            axes = draw()
            for form in ("svg", "png"):
                with replacing(self._file(f"{name}.{form}")) as aside:
                    plots.save(axes, aside, form)
                    picture = aside.read_bytes()
                axes.get_figure(root=True).set_layout_engine(None)  # type: ignore[union-attr]  # it is laid out
        except (InputError, ValueError, KeyError, IndexError) as error:
            self.notes.append(f"{caption}: could not be drawn ({error}).")
            return
        self._show(caption, "png", picture)

    def animation(self, name: str, caption: str, draw: Callable[[Path], Path]) -> None:
        """Draw a moving picture; what cannot be drawn is said."""
        try:
            path = draw(self._file(f"{name}.gif"))
        except InputError as error:
            self.notes.append(f"{caption}: could not be drawn ({error}).")
        else:
            self._show(caption, "gif", path.read_bytes())

    def _show(self, caption: str, form: str, picture: bytes) -> None:
        data, text = base64.b64encode(picture).decode(), html.escape(caption)
        self.body.append(
            f'<figure><img alt="{text}" src="data:image/{form};base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )


def groups_of(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs by task and algorithm, in that order."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.group, run.seed)):
        groups.setdefault(run.group, []).append(run)
    return groups


def summary(runs: Sequence[Run]) -> "pandas.DataFrame":
    """A row for each task and algorithm: means over seeds with 95% bootstrapped intervals."""
    import pandas

    rows = []
    for (task, algorithm), members in groups_of(runs).items():
        last = [run.metrics[-1] for run in members]
        row: dict[str, Any] = {"task": task, "algorithm": algorithm, "seeds": len(members)}
        row |= {plots.NAMES[name]: _interval([line.get(name) for line in last], name) for name in FIGURES}
        judged = [run.evaluation for run in members if run.evaluation]
        row["corrected"] = f"{len(judged)} of {len(members)}"
        for name in FIGURES:
            row[f"corrected {plots.NAMES[name]}"] = _interval([found.get(name) for found in judged], name)
        row["QD offset"] = f"{last[0]['qd_offset']:g}"
        paper = PAPER.get(algorithm, {}).get(task)
        row["paper (other physics)"] = f"coverage {paper[0]:.0%}, best {paper[1]:,}" if paper else ""
        rows.append(row)
    return pandas.DataFrame(rows)


def _interval(values: Sequence[float | None], name: str) -> str:
    """Mean, and the interval in brackets where there are several."""
    known = np.array([value for value in values if value is not None], float)
    if not len(known):
        return "not known"
    form = ".1%" if name == "coverage" else ",.0f"
    text = f"{known.mean():{form}}"
    if len(known) > 1:
        low, high = metrics.bootstrap(known)
        text += f" [{float(low):{form}}, {float(high):{form}}]"
    return text


def report(paths: Iterable[str | Path], output: str | Path, notes: Sequence[str] = ()) -> Path:
    """Write a report about runs; return the page's path.

    Args:
        paths: runs' folders; those that cannot be read are named on the page.
        output: folder for `report.html` and `figures/`.
        notes: what else a reader should know.
    """
    runs, problems = read_runs(paths)
    if not runs:
        raise InputError("nothing to report. " + " ".join(problems))
    page = _Page(Path(output), notes=[*problems, *notes])
    groups = groups_of(runs)
    page.heading("What came out")
    page.table(summary(runs))
    for members in groups.values():
        name = f"{members[0].algorithm} on {members[0].task}"
        if len(members) == 1:
            page.notes.append(f"{name}: one seed only, so there is no interval.")
        missing = [run.name for run in members if run.corrected is None]
        if missing:
            page.notes.append(
                f"{name}: no corrected archive of {', '.join(missing)} as it is now "
                "(ppga evaluate RUN makes it)."
            )
        page.notes += [f"{name}: {odd}" for odd in _not_alike(members)]
        page.notes += [note for run in members if (note := _missing_lines(run))]
    for task in dict.fromkeys(run.task for run in runs):
        _task_section(page, task, {key[1]: members for key, members in groups.items() if key[0] == task})
    for run in runs:
        _run_section(page, run)
    return _write(page, runs)


def _not_alike(members: Sequence[Run]) -> list[str]:
    """What runs that are shown as seeds of one system do not have in common."""
    odd = []
    for option in dict.fromkeys(option for run in members for option in run.settings):
        values = list(dict.fromkeys(str(run.settings.get(option)) for run in members))
        if len(values) > 1:
            odd.append(f"not seeds of the same, {option} is {' or '.join(values)}.")
    if len({run.seed for run in members}) < len(members):
        odd.append("a seed is there more than once, so the interval is too narrow.")
    return odd


def _missing_lines(run: Run) -> str | None:
    """A note if the metrics lack lines of iterations before the last one."""
    if run.alone or run.metrics[-1]["iteration"] <= len(run.metrics):
        return None
    last = run.metrics[-1]["iteration"]
    missing = last - len(run.metrics)
    return f"{run.name}: {missing} of the {last} lines of metrics.jsonl are damaged or missing."


def _task_section(page: _Page, task: str, groups: dict[str, list[Run]]) -> None:
    page.heading(f"{task}: over the course of training")
    courses = {name: runs for name, runs in groups.items() if not runs[0].alone}
    for over in ("evaluations", "env_steps", "wall_time") if courses else ():
        for what in FIGURES:
            caption = f"{plots.NAMES[what]} over {plots.NAMES[over]}"
            page.figure(
                f"{task}-{what}-{over}",
                caption,
                lambda what=what, over=over: plots.curve(courses, what, over),  # type: ignore[misc]
            )
    plain = {name: [run.archive for run in runs if run.archive] for name, runs in groups.items()}
    page.figure(f"{task}-ccdf", "how many cells reach a reward", lambda: plots.ccdf(plain))
    judged = {name: [run.corrected for run in runs if run.corrected] for name, runs in groups.items()}
    if any(judged.values()):
        page.figure(
            f"{task}-ccdf-corrected", "how many cells reach a reward, corrected", lambda: plots.ccdf(judged)
        )
    archives = [run.archive for runs in groups.values() for run in runs if run.archive]
    if len(archives) > 1:
        scale = maps.shared_scale(archives)
        for runs in groups.values():
            for run in runs:
                if run.archive:
                    page.figure(
                        f"{run.file}-heatmap-shared",
                        f"{run.name}, colours shared by all runs of {task}",
                        lambda run=run: maps.heatmap(run.archive, scale=scale),  # type: ignore[misc]
                    )


def _run_section(page: _Page, run: Run) -> None:
    page.heading(f"{run.name}: {run.algorithm} on {run.task}, seed {run.seed}")
    archive = run.archive
    if archive is None or not len(archive):
        page.notes.append(f"{run.name}: no archive was written yet.")
    else:
        both = [one for one in (archive, run.corrected) if one is not None]
        scale = maps.shared_scale(both)
        page.figure(f"{run.file}-heatmap", "the archive", lambda: maps.heatmap(archive, scale=scale))
        corrected = run.corrected
        if corrected is not None:
            page.figure(
                f"{run.file}-heatmap-corrected",
                "the corrected archive, same colours",
                lambda: maps.heatmap(corrected, scale=scale),
            )
        if len(archive.measure_names) > 2:
            page.figure(
                f"{run.file}-parallel", "elites across measures", lambda: plots.parallel_axes(archive)
            )
        if len(archive.measure_names) >= 2 and "search_measures" in run.metrics[0]:
            page.figure(f"{run.file}-path", "where the search policy went", lambda: plots.search_path(run))
        if archive.description.get("network") and is_known(archive.description["task"]["name"]):
            cells, task = gaits.corners(archive), sample(archive.description["task"]["name"])
            if task.model is not None:
                page.figure(
                    f"{run.file}-film", "strides, frame by frame", lambda: film.strips(archive, cells)
                )
            if task.has_feet:
                page.figure(f"{run.file}-gaits", "gaits", lambda: gaits.diagram(archive, cells))
        if run.alone:
            page.notes.append(f"{run.name}: an archive by itself does not tell how it was trained.")
            return
        page.animation(f"{run.file}-growth", "how the archive grew", lambda path: plots.growth(run, path))
    if "xnes_mean" in run.metrics[0]:
        page.figure(f"{run.file}-xnes", "xNES' mean and step size", lambda: plots.xnes(run))
    page.figure(f"{run.file}-times", "where the time went", lambda: plots.times(run))


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; }
figure { display: inline-block; margin: 0.5em; vertical-align: top; }
figure img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: 13px; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { padding: 0.3em 0.8em; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
.notes { background: #fff7e0; padding: 0.5em 1.5em; }
"""


def _write(page: _Page, runs: Sequence[Run]) -> Path:
    title = f"ppga: {len(runs)} run{'s' if len(runs) > 1 else ''}"
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in page.notes)
    shown = f'<div class="notes"><p>What to know:</p><ul>{notes}</ul></div>' if notes else ""
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{shown}{''.join(page.body)}</body></html>\n"
    )
    path = page.folder / "report.html"
    write_text(path, text)
    return path
