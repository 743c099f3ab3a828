"""Names that matplotlib could read as formulas, and rich as markup or emoji codes, are shown as they are."""

import contextlib
import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ppga
from ppga import Budget, InputError, Outcome
from ppga.adaptation import Adaptation, Recovery
from ppga.adaptation import draw as draw_recovery
from ppga.analysis import frames, gaits, plots, report
from ppga.analysis.proxies import ProxyReport
from ppga.analysis.runs import read_run
from ppga.archives import Archive, heatmaps
from ppga.cli.adapt import _trials
from ppga.cli.common import console
from ppga.cli.summary import show_outcome
from ppga.problems import Sphere
from ppga.rendering import Renderer
from ppga.runs.display import Display, Lines, Picture
from ppga.studies import plan_study
from ppga.studies.ray import progress_table
from ppga.tasks import TASKS

from helpers.commands import command
from helpers.runs import SPHERE
from helpers.slider import Slider

ODD = ("steps [/s] $ x_{ $", "[bold] :smile: $ \\frac{ $", "a $ b", "x_{$")
"""The first two raise an error where they are read as markup or as a formula, or disappear in part."""
CONFIG = replace(SPHERE, label=ODD[0])


@dataclass(frozen=True)
class OddSphere(Sphere):
    measure_names: tuple[str, ...] = ODD[:2]

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"task": {"name": ODD[1], "dimensions": self.solution_size}}


class OddSlider(Slider):
    name = "odd-slider"
    measure_names = ODD[:1]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Outcome of a run with odd names, which has drawn its archive."""
    run = tmp_path_factory.mktemp("odd") / "run [/s] :smile:"
    output = io.StringIO()
    problem, display = OddSphere(), Lines(Console(file=output, width=200))
    outcome = ppga.train(problem, CONFIG, budget=Budget(iterations=3), output=run, display=display)
    assert (run / "heatmap.png").exists()
    assert f"ppga on {ODD[1]}" in output.getvalue()
    assert "warning" not in output.getvalue()
    return outcome


def with_names(archive: Archive, names: tuple[str, ...]) -> Archive:
    """The same elites in an archive with measures of these names."""
    k = len(names)
    changes = {"measure_names": list(names), "shape": [20, 20, 1, 1][:k], "ranges": [[-60.0, 60.0]] * k}
    elites = dict(archive.elites) | {"measures": np.zeros((len(archive), k), np.float32)}
    return replace(archive, description=archive.description | changes, elites=elites)


def recovery() -> Recovery:
    one = np.ones((1, 1))
    trial = Adaptation(np.array([0]), np.ones(1), np.array([0]), np.ones(1), True)
    return Recovery(1.0, np.ones(1), one, one, np.ones(1), (trial,), 0.0)


FIGURES: dict[str, Callable[[Archive, Path], Axes]] = {
    "heatmap": lambda archive, _: heatmaps.heatmap(archive),
    "nested": lambda archive, _: heatmaps.heatmap(with_names(archive, ODD)),
    "parallel": lambda archive, _: plots.parallel_axes(archive),
    "difference": lambda archive, _: plots.difference(archive, archive),
    "ccdf": lambda archive, _: plots.ccdf({name: [archive] for name in ODD[:2]}),
    "curve": lambda _, run: plots.curve({name: [read_run(run)] for name in ODD[:2]}, "best"),
    "trajectory": lambda _, run: plots.trajectory(read_run(run)),
    "strategy": lambda _, run: plots.strategy(read_run(run)),
    "recovery": lambda *_: draw_recovery(recovery(), ", ".join(ODD[:2])),
    "proxies": lambda *_: ProxyReport(ODD[:2], *[np.ones((3, 2))] * 2, *[np.ones(2)] * 2).plot(),
}


def text_of(axes: Axes) -> str:
    """The text in a figure."""
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plots.save(axes, image, "svg")
    text = html.unescape(re.sub(r"<[^>]*>", " ", image.getvalue().decode()))
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_shows_every_name(figure: str, outcome: Outcome) -> None:
    assert outcome.folder is not None
    text = text_of(FIGURES[figure](outcome.archive, outcome.folder))
    for name in ODD if figure == "nested" else ODD[:2]:
        assert name in text


def test_a_report_has_all_its_figures(outcome: Outcome, tmp_path: Path) -> None:
    assert outcome.folder is not None
    page = report.report([outcome.folder], tmp_path)
    text = html.unescape(page.read_text())
    assert "could not be drawn" not in text
    assert f"{ODD[0]} on {ODD[1]}" in text


def test_pictures_of_robots_show_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, OddSlider.name, OddSlider)
    config, _ = ppga.preset("smoke", "slider", "map-elites")
    archive = ppga.train(OddSlider(episode_length=20), config, budget=Budget(iterations=1)).archive
    cells = {ODD[1]: archive.best()}
    text = text_of(gaits.diagram(archive, cells))
    assert ODD[0] in text
    assert ODD[1] in text
    assert ODD[1] in gaits.text(OddSlider(), archive, cells)
    try:
        Renderer(OddSlider().model, 64, 48).close()
    except InputError:
        return  # this machine cannot draw robots
    assert ODD[1] in text_of(frames.strips(archive, cells))


@pytest.mark.parametrize("live", [False, True])
def test_displays_show_every_name(live: bool) -> None:
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=live, width=200)
    display: Display = Picture(terminal) if live else Lines(terminal)
    display.begin(" ".join(ODD), 0.0)
    display.say(f"says {' '.join(ODD)}")
    display.end()
    assert output.getvalue().count(" ".join(ODD)) >= 2


def test_the_console_of_all_commands_shows_every_name() -> None:
    output = io.StringIO()
    table = Table(title=f"title {ODD[0]}", caption=f"caption {ODD[0]}")
    table.add_column(f"heading {ODD[0]}")
    table.add_row(f"row {ODD[0]} :smile:")
    with contextlib.redirect_stdout(output):
        console.print(table)
        console.print(f"line {ODD[0]} :smile:")
        console.print(_trials(recovery(), 2))
        with console.status(Text(ODD[0])):
            pass
    for place in ("title", "caption", "heading", "row", "line"):
        assert f"{place} {ODD[0]}" in output.getvalue()
    assert output.getvalue().count(":smile:") == 2


def test_the_end_of_a_run_shows_every_name(outcome: Outcome) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        show_outcome(console, outcome)
    text = output.getvalue()
    assert f"({ODD[0]}, {ODD[1]})" in text
    assert text.count("run [/s] :smile:") >= 5


def test_commands_show_every_name(outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, odd = outcome.folder, "[bold] :smile:"
    monkeypatch.setitem(TASKS, OddSlider.name, OddSlider)
    assert folder is not None
    for words, expected in {
        ("tasks",): ODD[0],
        ("compare", str(folder), str(folder), "--output", f"{odd}.png"): f"{odd}.png",
        ("report", str(folder), "--output", f"page {odd}"): f"page {odd}/report.html",
        ("train", "sphere", "--dry-run", "--label", odd): odd,
        ("train", "sphere", "--iterations", "1", "--output", f"run {odd}"): f"run {odd}/heatmap.png",
        ("study", "--tasks", "sphere", "--dry-run", "--output", f"study {odd}"): f"study {odd}/sphere",
        ("reproduce", "ablations", "--dry-run", "--output", f"paper {odd}"): f"paper {odd}/laptop",
    }.items():
        done = command(*words, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert expected in done.stdout, words
    odd = "[/s] :smile:"
    for words in (("train", odd), (odd,), ("compare", odd, odd), ("study", "--tasks", odd), ("view", odd)):
        done = command(*words, folder=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert odd in done.stderr + done.stdout


def test_a_study_shows_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its runs fails: PGA-ME needs environments, and the sphere has none."""
    algorithm = "map-elites:label=[/s]"
    study = plan_study(["sphere"], [algorithm], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    output = io.StringIO()
    monkeypatch.setenv("COLUMNS", "120")
    with contextlib.redirect_stdout(output):
        for printer in (console, Console()):
            printer.print(progress_table(dict.fromkeys(study.runs(), "failed [/s]")))
    assert output.getvalue().count(f"sphere {algorithm} 0") == 2
    assert output.getvalue().count("failed [/s]") == 2
    folder = tmp_path / "study [/s]"
    done = command(
        "study", "--tasks", "sphere", "--preset", "smoke", "--algorithms", "pga-me", "--evaluations", "20",
        "--output", str(folder),
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{folder}/sphere/pga-me-0 failed (exit code 2)" in done.stdout
    assert f"failed: {folder}/sphere/pga-me-0 (exit code 2)" in done.stdout
