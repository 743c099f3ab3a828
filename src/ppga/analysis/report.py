"""Reports: one self-contained HTML page about any number of runs, with its figures as PNG and SVG."""

import base64
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from ppga.analysis import frames, gaits, metrics, plots, published
from ppga.analysis.runs import Run, read_runs
from ppga.archives import heatmaps
from ppga.errors import InputError
from ppga.runs.folder import ARCHIVE_METRICS
from ppga.storage import plain_name, replacing, write_text
from ppga.tasks import is_registered, sample

if TYPE_CHECKING:
    import pandas

MEAN = plots.NAMES["mean"]
TABLE_METRICS = ("qd_score", "coverage", "survivor_coverage", "best", "mean")


@dataclass
class _Page:
    """A page that is written after all figures were drawn.

    Attributes:
        folder: folder of the report.
        body: HTML elements.
        notes: messages for the top of the page.
    """

    folder: Path
    body: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def heading(self, text: str, level: int = 2) -> None:
        self.body.append(f"<h{level}>{html.escape(text)}</h{level}>")

    def table(self, frame: "pandas.DataFrame") -> None:
        self.body.append(frame.to_html(index=False, na_rep="", border=0, justify="left"))

    def _file(self, name: str) -> Path:
        """Path of a figure; names of tasks come from archives and may contain any character."""
        return self.folder / "figures" / plain_name(name)

    def figure(self, name: str, caption: str, draw: Callable[[], Axes]) -> None:
        """Draw a figure into files and onto the page; a note says so if it cannot be drawn.

        Args:
            name: name of the files, without ending.
            caption: text below the figure.
            draw: draws it and returns its axes.
        """
        try:
            axes = draw()
            for form in ("svg", "png"):
                with replacing(self._file(f"{name}.{form}")) as aside:
                    plots.save(axes, aside, form)
                    image = aside.read_bytes()
                axes.get_figure(root=True).set_layout_engine(None)  # type: ignore[union-attr]  # layout is done
        except (InputError, ValueError, KeyError, IndexError) as error:
            self.notes.append(f"{caption}: could not be drawn ({error}).")
            return
        self._show(caption, "png", image)

    def animation(self, name: str, caption: str, draw: Callable[[Path], Path]) -> None:
        """Add an animation; see `figure`, but `draw` writes a given GIF file and returns its path."""
        try:
            path = draw(self._file(f"{name}.gif"))
        except InputError as error:
            self.notes.append(f"{caption}: could not be drawn ({error}).")
        else:
            self._show(caption, "gif", path.read_bytes())

    def _show(self, caption: str, form: str, image: bytes) -> None:
        data, text = base64.b64encode(image).decode(), html.escape(caption)
        self.body.append(
            f'<figure><img alt="{text}" src="data:image/{form};base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )


def groups_of(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs by task and algorithm, sorted."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.group, run.seed)):
        groups.setdefault(run.group, []).append(run)
    return groups


def summary(runs: Sequence[Run]) -> "pandas.DataFrame":
    """A data frame with one row for each task and algorithm: means over seeds with 95% intervals."""
    import pandas

    rows = []
    for (task, algorithm), members in groups_of(runs).items():
        last = [run.metrics[-1] for run in members]
        row: dict[str, Any] = {"task": task, "algorithm": algorithm, "seeds": len(members)}
        row |= {
            plots.NAMES[name]: _interval([line.get(name) for line in last], name) for name in TABLE_METRICS
        }
        evaluations = [run.evaluation for run in members if run.evaluation]
        row["corrected"] = f"{len(evaluations)} of {len(members)}"
        for name in TABLE_METRICS:
            row[f"corrected {plots.NAMES[name]}"] = _interval([each.get(name) for each in evaluations], name)
        row["QD offset"] = f"{last[0]['qd_offset']:g}"
        rows.append(row)
    return pandas.DataFrame(rows)


def beside_the_paper(groups: Mapping[tuple[str, str], Sequence[Run]]) -> "pandas.DataFrame":
    """A data frame with the paper's corrected results, and those of runs of the same algorithm and task."""
    import pandas

    rows = []
    for (task, algorithm), members in groups.items():
        paper = published.PAPER.get(algorithm, {}).get(task)
        if paper is None:
            continue
        values = {"qd_score": paper.qd_score, "coverage": paper.coverage, "best": paper.best}
        both = {"task": task, "algorithm": algorithm}
        rows.append({**both, "": "paper, 4 seeds", **_formatted(values), MEAN: _mean_in_paper(paper, task)})
        count = published.cells(task)
        archives = [run.corrected for run in members if run.corrected and run.corrected.cells == count]
        if archives:
            scores = [published.qd_score(archive, task) for archive in archives]
            objectives = [archive.elites["objective"] for archive in archives]
            known = [score for score in scores if score is not None]
            means = {
                "qd_score": float(np.mean(known)) if len(known) == len(scores) else None,
                "coverage": float(np.mean([archive.coverage for archive in archives])),
                "best": float(np.mean([metrics.best(objective) for objective in objectives])),
                "mean": float(np.mean([metrics.mean(objective) for objective in objectives])),
            }
            seeds = "1 seed" if len(archives) == 1 else f"{len(archives)} seeds"
            rows.append({**both, "": f"here, {seeds}", **_formatted(means)})
    return pandas.DataFrame(rows)


def _mean_in_paper(paper: published.Result, task: str) -> str:
    """Mean objective of the elites in the paper; a lower bound where episodes may end early."""
    mean = paper.mean(task)
    if task in ("halfcheetah", "humanoid"):  # no episode ends early, or the offset is 0
        return f"{mean:,.0f}"
    return f"at least {mean:,.0f}" if mean > 0 else "unknown"


def _formatted(values: Mapping[str, float | None]) -> dict[str, str]:
    """Metrics with their names in tables."""
    return {
        plots.NAMES[name]: "unknown" if value is None else f"{value:{_format(name)}}"
        for name, value in values.items()
    }


def _format(name: str) -> str:
    return ".1%" if "coverage" in name else ",.0f"


def _interval(values: Sequence[float | None], name: str) -> str:
    """Mean of a metric over runs, and its interval in brackets if there are several."""
    known = np.array([value for value in values if value is not None], float)
    if not len(known):
        return "unknown"
    form = _format(name)
    text = f"{known.mean():{form}}"
    if len(known) > 1:
        low, high = metrics.bootstrap(known)
        text += f" [{float(low):{form}}, {float(high):{form}}]"
    return text


def report(paths: Iterable[str | Path], output: str | Path, notes: Sequence[str] = ()) -> Path:
    """Write a report about runs, and return the path of its page.

    Args:
        paths: runs' folders or archives' files; the page lists those that cannot be read.
        output: folder for `report.html` and `figures/`.
        notes: further messages for the top of the page.
    """
    runs, problems = read_runs(paths)
    if not runs:
        raise InputError("nothing to report. " + " ".join(problems))
    page = _Page(Path(output), notes=[*problems, *notes])
    groups = groups_of(runs)
    page.heading("Results")
    page.table(summary(runs))
    paper = beside_the_paper(groups)
    if len(paper):
        page.heading("Corrected archives beside the paper's", 3)
        page.table(paper)
        page.notes.append(
            "The paper's robots have other physics and rewards. Its QD-scores, and those beside them, have "
            "the offset of its authors' code."
        )
    for members in groups.values():
        name = f"{members[0].algorithm} on {members[0].task}"
        if len(members) == 1:
            page.notes.append(f"{name}: only one seed, so there is no interval.")
        missing = [run.name for run in members if run.corrected is None]
        if missing:
            page.notes.append(
                f"{name}: no up-to-date corrected archive of {', '.join(missing)} "
                "(ppga evaluate RUN writes it)."
            )
        page.notes += [f"{name}: {difference}" for difference in _differences(members)]
        page.notes += [note for run in members if (note := _missing_lines(run))]
    for task in dict.fromkeys(run.task for run in runs):
        _task_section(page, task, {key[1]: members for key, members in groups.items() if key[0] == task})
    for run in runs:
        _run_section(page, run)
    return _write(page, runs)


def _differences(members: Sequence[Run]) -> list[str]:
    """Messages about differences between runs that are shown as seeds of one system."""
    messages = []
    for option in dict.fromkeys(option for run in members for option in run.settings):
        values = list(dict.fromkeys(str(run.settings.get(option)) for run in members))
        if len(values) > 1:
            messages.append(f"runs differ in more than the seed, {option} is {' or '.join(values)}.")
    if len({run.seed for run in members}) < len(members):
        messages.append("several runs have the same seed, so the interval is too narrow.")
    return messages


def _missing_lines(run: Run) -> str | None:
    """A note if the metrics lack lines of iterations before the last one."""
    if run.archive_only or run.metrics[-1]["iteration"] <= len(run.metrics):
        return None
    last = run.metrics[-1]["iteration"]
    missing = last - len(run.metrics)
    return f"{run.name}: {missing} of the {last} lines of metrics.jsonl are damaged or missing."


def _task_section(page: _Page, task: str, groups: dict[str, list[Run]]) -> None:
    page.heading(f"{task}: training")
    trained = {name: runs for name, runs in groups.items() if not runs[0].archive_only}
    for over in ("evaluations", "env_steps", "wall_time") if trained else ():
        for what in ARCHIVE_METRICS:
            caption = f"{plots.NAMES[what]} over {plots.NAMES[over]}"
            page.figure(
                f"{task}-{what}-{over}",
                caption,
                lambda what=what, over=over: plots.curve(trained, what, over),  # type: ignore[misc]
            )
    authors = published.curves().get(task)
    if authors and "ppga" in trained:
        label = f"authors' code, {published.CURVE_CELLS.get(task, 2500):,} cells"
        for over in ("iteration", "evaluations"):
            for what in ("coverage", "best", "mean"):
                page.figure(
                    f"{task}-{what}-{over}-authors",
                    f"{plots.NAMES[what]} over {plots.NAMES[over]}, and an uncorrected run of the authors",
                    lambda what=what, over=over: plots.curve(  # type: ignore[misc]
                        {"ppga": trained["ppga"]}, what, over, reference=(label, authors[over], authors[what])
                    ),
                )
    archived = {name: [run.archive for run in runs if run.archive] for name, runs in groups.items()}
    page.figure(f"{task}-ccdf", "share of the cells that reach a reward", lambda: plots.ccdf(archived))
    corrected = {name: [run.corrected for run in runs if run.corrected] for name, runs in groups.items()}
    if any(corrected.values()):
        page.figure(
            f"{task}-ccdf-corrected",
            "share of the cells that reach a reward, corrected archives",
            lambda: plots.ccdf(corrected),
        )
    archives = [run.archive for runs in groups.values() for run in runs if run.archive]
    if len(archives) > 1:
        scale = heatmaps.shared_scale(archives)
        for runs in groups.values():
            for run in runs:
                if run.archive:
                    page.figure(
                        f"{run.figure_name}-heatmap-shared",
                        f"{run.name}, colors shared by all runs of {task}",
                        lambda run=run: heatmaps.heatmap(run.archive, scale=scale),  # type: ignore[misc]
                    )


def _run_section(page: _Page, run: Run) -> None:
    page.heading(f"{run.name}: {run.algorithm} on {run.task}, seed {run.seed}")
    archive = run.archive
    if archive is None or not len(archive):
        page.notes.append(f"{run.name}: no archive was written yet.")
    else:
        both = [each for each in (archive, run.corrected) if each is not None]
        scale = heatmaps.shared_scale(both)
        page.figure(
            f"{run.figure_name}-heatmap", "the archive", lambda: heatmaps.heatmap(archive, scale=scale)
        )
        corrected = run.corrected
        if corrected is not None:
            page.figure(
                f"{run.figure_name}-heatmap-corrected",
                "the corrected archive, same colors",
                lambda: heatmaps.heatmap(corrected, scale=scale),
            )
        if len(archive.measure_names) > 2:
            page.figure(
                f"{run.figure_name}-parallel", "elites across measures", lambda: plots.parallel_axes(archive)
            )
        if len(archive.measure_names) >= 2 and "search_measures" in run.metrics[0]:
            page.figure(
                f"{run.figure_name}-trajectory",
                "trajectory of the search policy",
                lambda: plots.trajectory(run),
            )
        if archive.description.get("network") and is_registered(archive.description["task"]["name"]):
            cells, task = gaits.corners(archive), sample(archive.description["task"]["name"])
            if task.model is not None:
                page.figure(
                    f"{run.figure_name}-frames",
                    "strides, frame by frame",
                    lambda: frames.strips(archive, cells),
                )
            if task.has_feet:
                page.figure(f"{run.figure_name}-gaits", "gaits", lambda: gaits.diagram(archive, cells))
        if run.archive_only:
            page.notes.append(f"{run.name}: the file of an archive has no metrics of its training.")
            return
        page.animation(
            f"{run.figure_name}-growth", "growth of the archive", lambda path: plots.growth(run, path)
        )
    if "strategy_mean" in run.metrics[0]:
        caption = "mean and step size of the evolution strategy"
        page.figure(f"{run.figure_name}-strategy", caption, lambda: plots.strategy(run))
    page.figure(f"{run.figure_name}-times", "seconds of each phase", lambda: plots.times(run))


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
    box = f'<div class="notes"><p>Notes:</p><ul>{notes}</ul></div>' if notes else ""
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{box}{''.join(page.body)}</body></html>\n"
    )
    path = page.folder / "report.html"
    write_text(path, text)
    return path
