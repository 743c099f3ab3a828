"""Settings, metrics and other files of a run that somebody else has written: used or rejected in one line."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ppga
from ppga import export, studies
from ppga.analysis import report
from ppga.analysis.runs import read_run, read_runs
from ppga.archives import load_archive
from ppga.archives.files import find_archive
from ppga.errors import InputError
from ppga.studies import progress
from ppga.viewer.source import Source

from helpers.commands import command
from helpers.runs import SPHERE
from helpers.untrusted import DEEP, DIGITS, HALF, ODD_JSON, RATHER_DEEP, refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five iterations."""
    run = tmp_path_factory.mktemp("finished") / "run"
    config = SPHERE.replace(**{"log.snapshot_iterations": 2})
    ppga.train("sphere", config, budget=ppga.Budget(iterations=5), output=run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# config.json.


def entry(name: str, value: Any) -> Callable[[Path], Any]:
    """A change of an entry of the table in a JSON file."""
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))


def added(text: str) -> Callable[[Path], Any]:
    """An additional entry, of any JSON."""
    return lambda file: file.write_text(f"{file.read_text().rstrip().removesuffix('}')}, {text}}}")


SETTINGS: list[dict[str, Any]] = [
    {"seed": "x"}, {"seed": 10**30}, {"seed": -1}, {"seed": [0] * 100_000}, {"cluster": ["ray"]},
    {"archive": {"shape": [10**6, 10**6]}}, {"archive": {"shape": [50_000, 40_000]}},
    {"archive": {"shape": [10**39] * 2}}, {"archive": {"kind": "cvt", "cells": 2_000_000_000}},
    {"strategy": {"sigma0": math.nan}}, {"branches": 10**39}, {"branches": 10**9}, {"confirm": 5},
    {"confirm": {"recheck": 10**9}}, {"algorithm": []}, {"algorithm": "x"}, {"search": {"branches": 8}},
    {"algorithm": "sep-cma-mae", "emitters": 10**9}, {"algorithm": "map-elites", "branches": 8},
    {"algorithm": "cma-maega-td3-es", "es": {"samples": 10**9}},
    {"network": {"actor": [10**39]}}, {"simulation": {"threads": 10**39}},
    {"log": {"checkpoint_seconds": math.inf}},
]  # fmt: skip
ODD_ENTRIES: dict[str, tuple[Any, ...]] = {
    "task": (5, None, [], {}, "a\nb", "\x1b[2Jsphere", "x" * 100_000),
    "config": (None, 5, "x", [], {}, *({"algorithm": "ppga", **changes} for changes in SETTINGS)),
    "budget": (None, 5, "x", [], {}, {"iterations": "x"}, {"minutes": math.inf}, {"minutes": -1}),
    "problem": ("x", 5, [], ["task"], {"task": 5}, {"task": "x"}, {"x": {"y": 1}}, {"task": [1]}),
    "machine": ([], 5, "x", None, {"versions": 3}, {"versions": None}, {"versions": [1]}),
    "commit": (5, []),
    "begun": (5, []),
    "format": (5, None, []),
    "version": (5, None, [], "1"),
}


def replaced(content: bytes) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(content)


CONFIGS: dict[str, Callable[[Path], Any]] = {
    **{
        f"{name} {number}": entry(name, value)
        for name, values in ODD_ENTRIES.items()
        for number, value in enumerate(values)
    },
    "deep": added(f'"x": {DEEP}'),
    "rather deep": added(f'"x": {RATHER_DEEP}'),
    "digits": added(f'"x": {DIGITS}'),
    "minutes beyond all": added('"budget": {"minutes": 1e999}'),
    "half a character": added(f'"x": {HALF}'),
    **{f"only {name}": replaced(content) for name, content in ODD_JSON.items()},
}


@pytest.mark.parametrize("odd", CONFIGS)
def test_an_odd_config_is_rejected_in_one_line(odd: str, run: Path) -> None:
    CONFIGS[odd](run / "config.json")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    refused(command("train", "--resume", str(run), "--iterations", "7"))
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("odd", CONFIGS)
def test_commands_that_only_read_an_odd_config_use_or_reject_it(odd: str, run: Path, tmp_path: Path) -> None:
    CONFIGS[odd](run / "config.json")
    with contextlib.suppress(InputError):
        report.summary([read_run(run)])
    out = str(tmp_path / "out.safetensors")
    done = command("export", str(run), "--format", "archive", "--output", out)
    assert done.returncode == 0 or refused(done)


# Metrics, snapshots of cells, corrected figures, studies.


def line(**change: Any) -> Callable[[Path], Any]:
    """A change of the last line of metrics; `...` removes an entry."""

    def apply(run: Path) -> None:
        file = run / "metrics.jsonl"
        *before, last = file.read_text().splitlines()
        content = {name: value for name, value in (json.loads(last) | change).items() if value is not ...}
        file.write_text("\n".join([*before, json.dumps(content), ""]))

    return apply


def raw_line(content: str) -> Callable[[Path], Any]:
    return lambda run: (run / "metrics.jsonl").write_text(f"{content}\n")


def figures(content: str) -> Callable[[Path], Any]:
    """Figures of a corrected archive, and the archive."""

    def apply(run: Path) -> None:
        shutil.copy(run / "archive" / "archive.safetensors", run / "archive" / "corrected.safetensors")
        (run / "archive" / "evaluation.json").write_text(content)

    return apply


def snapshot(**change: Any) -> Callable[[Path], Any]:
    content = {"iteration": 5, "cells": [1, 2], "objectives": [1.0, 2.0]} | change
    return lambda run: (run / "cells.jsonl").write_text(json.dumps(content) + "\n")


ODD_METRICS: dict[str, tuple[Any, ...]] = {
    "wall_time": (..., "x", None, [], math.inf, 10**39),
    "env_steps": (..., "x", None, {}),
    "evaluations": (..., [1]),
    "elites": (..., "x"),
    "qd_offset": (..., "x", [], math.nan),
    "qd_score": (..., "x", []),
    "coverage": (..., "x", {}),
    "best": (..., "x", [1, 2]),
    "times": (..., 5, [], {"x": "y"}, {"x": None}, {"x": math.inf}),
    "search_measures": (5, [], [5], [1, "x"], [1, 2, 3], [[1, "x"]], [[1, 2], [1]], {"a": 1}, "xy", [[]]),
    "strategy_mean": (5, [], [5], [1, "x"], [["x"]], "xyz"),
    "strategy_scale": (5, [], ["x"]),
    "restarted": ([1], "x"),
    "iteration": (..., "x", None, 1.5, [1]),
}
ODD_FIGURES = (
    "", "5", "[]", "null", '"x"', "{}", '{"best": "x"}', '{"best": []}', '{"episodes": "x"}',
    '{"physics": 5}', '{"best": NaN}', '{"mean": Infinity}', DEEP, DIGITS, f'{{"best": {DIGITS}}}',
)  # fmt: skip
ODD_SNAPSHOTS: tuple[dict[str, Any], ...] = (
    {"cells": 5}, {"cells": "xy"}, {"cells": [1]}, {"cells": [1, 10**9]}, {"cells": [1, -1]},
    {"cells": [1, 10**39]}, {"cells": [1.5, 2]}, {"objectives": 5}, {"objectives": ["x", "y"]},
    {"objectives": [None, 1]}, {"objectives": [10**39, 1]},
)  # fmt: skip
READ: dict[str, Callable[[Path], Any]] = {
    **{
        f"{name} {number}": line(**{name: value})
        for name, values in ODD_METRICS.items()
        for number, value in enumerate(values)
    },
    "a deep line": raw_line(DEEP),
    "a line of digits": raw_line(f'{{"iteration": {DIGITS}}}'),
    "a line with half a character": raw_line(f'{{"iteration": 6, "x": {HALF}}}'),
    **{f"figures {number}": figures(content) for number, content in enumerate(ODD_FIGURES)},
    **{f"cells {number}": snapshot(**change) for number, change in enumerate(ODD_SNAPSHOTS)},
}


@pytest.mark.parametrize("odd", READ)
def test_odd_files_of_a_run_are_used_or_rejected(odd: str, finished: Path, tmp_path: Path) -> None:
    """By a report, an export, a study and the viewer."""
    run = tmp_path / "study" / "sphere" / "ppga-0"
    shutil.copytree(finished, run)
    READ[odd](run)
    budget = ppga.Budget(iterations=5)
    study = studies.plan_study(["sphere"], ["ppga"], 1, budget, "smoke", 3, tmp_path / "study")
    (planned,) = study.runs()
    readers: list[Callable[[], Any]] = [
        lambda: report.summary(read_runs([run])[0]),
        lambda: list(read_run(run).snapshots()),
        lambda: export.to_archive(load_archive(run), find_archive(run), tmp_path / "out.safetensors"),
        lambda: studies.is_finished(planned, study),
        lambda: progress.exceeded_budget(planned, study),
        lambda: progress.seconds_used(run),
        lambda: json.dumps(Source(run).trajectory(), allow_nan=False),
    ]
    for read in readers:
        with contextlib.suppress(InputError):
            read()


def test_a_report_says_what_it_cannot_draw(finished: Path, tmp_path: Path) -> None:
    run, other = (shutil.copytree(finished, tmp_path / name) for name in ("run", "other"))
    line(search_measures=[1], strategy_mean=[1])(run)
    snapshot(cells=[1])(run)
    line(wall_time="x")(other)
    done = command("report", str(run), str(other), "--output", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.html").read_text()
    for words in (
        "trajectory of the search policy: could not be drawn",
        "mean and step size of the evolution strategy: could not be drawn",
        "growth of the archive: could not be drawn", "wall_time of iteration 5 cannot be &#x27;x&#x27;",
    ):  # fmt: skip
        assert words in page


@pytest.mark.parametrize("content", [*ODD_JSON.values(), b'{"preset": NaN}', b'{"preset": []}'])
def test_an_odd_study_is_rejected_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes(content)
    words = ("--tasks", "sphere", "--algorithms", "ppga", "--preset", "smoke", "--output", str(tmp_path))
    assert "study" in refused(command("study", *words, "--evaluations", "20", "--dry-run"))
