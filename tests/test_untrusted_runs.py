"""What a run's folder says that somebody else has written: used, left out, or refused in one plain line."""

import contextlib
import hashlib
import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import export, study
from ppga.analysis import report
from ppga.analysis.runs import read_run, read_runs
from ppga.archives import load_archive
from ppga.archives.files import find_archive
from ppga.errors import InputError
from ppga.limits import LONGEST_EPISODE
from ppga.runs.display import Lines
from ppga.runs.loop import make_algorithm
from ppga.storage import read_tensors, write_json, write_tensors
from ppga.viewer.source import Source
from untrusted import DEEP, DIGITS, HALF, RATHER_DEEP, refused

from conftest import command, same_runs

CONFIG = ppga.PPGAConfig(
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(checkpoint_seconds=0, tensorboard=False),
)
SYSTEMS = {
    "ppga": CONFIG,
    "cma-es": replace(CONFIG, search=replace(CONFIG.search, strategy="cma-es")),
    "sep-cma-mae": replace(CONFIG, algorithm="sep-cma-mae"),
    "cvt": replace(CONFIG, archive=replace(CONFIG.archive, kind="cvt", cells=30)),
}
Trained = Callable[[str], Path]
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of five iterations of a system, made when first asked for."""
    folder = tmp_path_factory.mktemp("finished")

    def make(system: str) -> Path:
        if not (folder / system).exists():
            budget = ppga.Budget(iterations=5)
            ppga.train("sphere", SYSTEMS[system], budget=budget, output=folder / system)
        return folder / system

    return make


@pytest.fixture
def trained(finished: Trained, tmp_path: Path) -> Trained:
    """A copy of such a run."""

    def copy(system: str) -> Path:
        shutil.copytree(finished(system), tmp_path / "run")
        return tmp_path / "run"

    return copy


class Stopping(Lines):
    """Ends a run before its first iteration."""

    def begin(self, title: str, share: float) -> None:
        super().begin(title, share)
        raise KeyboardInterrupt


def resumed(run: Path) -> str:
    """What a run says when it is resumed, until its first iteration."""
    said = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        ppga.resume(run, budget=ppga.Budget(iterations=9), display=Stopping(Console(file=said, width=500)))
    return said.getvalue()


# Checkpoints.


def save(data: Path, arrays: Arrays, description: Any) -> None:
    """Write a checkpoint's file anew, with the checksum it has then."""
    write_tensors(data, arrays, description)
    beside, checksum = data.with_suffix(".json"), hashlib.sha256(data.read_bytes()).hexdigest()
    write_json(beside, json.loads(beside.read_text()) | {"sha256": checksum})


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """A change of one array of a checkpoint."""

    def make(arrays: Arrays) -> None:
        arrays[name] = np.asarray(change(arrays[name]))

    return make


def first(value: float) -> Callable[[Any], Any]:
    """Another first number."""

    def put(values: Any) -> Any:
        changed = values.copy()
        changed.ravel()[0] = value
        return changed

    return put


def no(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.pop(name)


def besides(name: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: np.zeros(1)})


def text(content: str) -> Callable[[Any], Any]:
    return lambda _: np.frombuffer(content.encode(), np.uint8)


def a_single_elite(arrays: Arrays) -> None:
    """An archive without the axis of elites."""
    for name in arrays:
        if name.startswith("archives/result/"):
            arrays[name] = arrays[name][0]


RESULT, SOFT, STRATEGY, EMITTER = "archives/result", "archives/soft", "strategy/0", "emitter/0"
WRONG: dict[str, tuple[str, Callable[[Arrays], None]]] = {
    **{
        f"no {name}": ("ppga", no(name))
        for name in (
            "counters", "search/000", "archives/judged", f"{SOFT}/threshold", f"{RESULT}/index", "idle",
            "age", "rewarding", f"{STRATEGY}/mean", f"{STRATEGY}/seed",
        )
    },
    **{
        f"{name} besides": ("ppga", besides(name))
        for name in (
            "extra", "search/001", "archives/extra", "archives/centroids", f"{RESULT}/extra", "aside/replay",
            f"{STRATEGY}/extra", "strategy/1/mean",
        )
    },
    "search of another kind": ("ppga", array("search/000", lambda values: values.astype(np.float64))),
    "search of another shape": ("ppga", array("search/000", lambda values: values[:, :3])),
    "too few counters": ("ppga", array("counters", lambda values: values[:3])),
    "too many counters": ("ppga", array("counters", lambda values: np.append(values, 1))),
    "counters that are NaN": ("ppga", array("counters", lambda values: values * np.nan)),
    "counters below 0": ("ppga", array("counters", lambda values: -values)),
    "counters of another iteration": ("ppga", array("counters", first(4))),
    "judged, too short": ("ppga", array("archives/judged", lambda values: values[:10])),
    "judged of another kind": ("ppga", array("archives/judged", lambda values: values.astype(np.float32))),
    "judged below 0": ("ppga", array("archives/judged", first(-1))),
    "a cell beyond the last": ("ppga", array(f"{RESULT}/index", lambda values: values + 10_000)),
    "a cell below 0": ("ppga", array(f"{RESULT}/index", first(-1))),
    "a cell twice": ("ppga", array(f"{RESULT}/index", lambda values: values * 0)),
    "an index of another kind": ("ppga", array(f"{SOFT}/index", lambda values: values.astype(np.int64))),
    "an objective that is NaN": ("ppga", array(f"{RESULT}/objective", first(np.nan))),
    "a threshold that is infinite": ("ppga", array(f"{SOFT}/threshold", first(np.inf))),
    "a row too few": ("ppga", array(f"{RESULT}/objective", lambda values: values[1:])),
    "solutions of another size": ("ppga", array(f"{RESULT}/solution", lambda values: values[:, 1:])),
    "an archive without rows": ("ppga", a_single_elite),
    "idle of another length": ("ppga", array("idle", lambda values: np.append(values, 1))),
    "rewarding of another kind": ("ppga", array("rewarding", lambda values: values.astype(np.int64))),
    "a mean that is NaN": ("ppga", array(f"{STRATEGY}/mean", first(np.nan))),
    "a mean of another size": ("ppga", array(f"{STRATEGY}/mean", lambda values: values[1:])),
    "a factor of another shape": ("ppga", array(f"{STRATEGY}/shape", lambda values: values[0])),
    "a scale of 0": ("ppga", array(f"{STRATEGY}/scale", lambda values: values * 0)),
    "a scale in a row": ("ppga", array(f"{STRATEGY}/scale", lambda values: values[None])),
    "a generation below 0": ("ppga", array(f"{STRATEGY}/generation", lambda values: -values)),
    "a generation of another kind": ("ppga", array(f"{STRATEGY}/generation", lambda values: values + 0.5)),
    "no random generator": ("cma-es", no(f"{STRATEGY}/_rng")),
    "a random generator that is no JSON": ("cma-es", array(f"{STRATEGY}/_rng", text("{"))),
    "a random generator, nested": ("cma-es", array(f"{STRATEGY}/_rng", text(DEEP))),
    "a random generator of digits": ("cma-es", array(f"{STRATEGY}/_rng", text(DIGITS))),
    "another random generator": ("cma-es", array(f"{STRATEGY}/_rng", text('{"bit_generator": "MT19937"}'))),
    "half a random generator": ("cma-es", array(f"{STRATEGY}/_rng", text('{"bit_generator": "PCG64"}'))),
    "a random generator of lists": ("cma-es", array(f"{STRATEGY}/_rng", text("[]"))),
    "a random generator of floats": ("cma-es", array(f"{STRATEGY}/_rng", lambda values: values / 2)),
    "a covariance that is NaN": ("cma-es", array(f"{STRATEGY}/cov.cov", first(np.nan))),
    "a covariance of another shape": ("cma-es", array(f"{STRATEGY}/cov.cov", lambda values: values[0])),
    "another size of the batch": ("sep-cma-mae", array(f"{EMITTER}/_batch_size", lambda size: size * 10**6)),
    "restarts that are NaN": ("sep-cma-mae", array(f"{EMITTER}/_restarts", lambda number: number * np.nan)),
    "no step size": ("sep-cma-mae", no(f"{EMITTER}/_opt.sigma")),
    "an emitter besides": ("sep-cma-mae", besides("emitter/1/_itrs")),
    "no centroids": ("cvt", no("archives/centroids")),
    "too few centroids": ("cvt", array("archives/centroids", lambda values: values[1:])),
    "centroids that are NaN": ("cvt", array("archives/centroids", first(np.nan))),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_checkpoint_with_wrong_arrays_and_the_right_checksum_is_left_out(
    wrong: str, trained: Trained
) -> None:
    system, change = WRONG[wrong]
    run = trained(system)
    data = run / "checkpoints" / "000005.safetensors"
    arrays, description = read_tensors(data)
    change(arrays)
    save(data, arrays, description)
    said = resumed(run)
    assert "checkpoint 5 is damaged and was left out" in said
    assert "resuming after iteration 4" in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_whose_newest_checkpoint_is_wrong_ends_as_if_nothing_had_happened(
    system: str, trained: Trained, tmp_path: Path
) -> None:
    """Nothing of what was loaded before the mistake was found is left."""
    run = trained(system)
    data = run / "checkpoints" / "000005.safetensors"
    arrays, description = read_tensors(data)
    save(data, arrays | {"counters": np.append(0, arrays["counters"][1:])}, description)  # seen last of all
    assert "resuming after iteration 4" in resumed(run)
    ppga.resume(run, budget=ppga.Budget(iterations=7))
    ppga.train("sphere", SYSTEMS[system], budget=ppga.Budget(iterations=7), output=tmp_path / "whole")
    same_runs(tmp_path / "whole", run)


@pytest.mark.parametrize(
    "description",
    [
        5, [], {"iteration": 5}, {"iteration": "5", "seconds": 1.0}, {"iteration": None, "seconds": 1.0},
        {"iteration": 5, "seconds": math.nan}, {"iteration": 5, "seconds": math.inf},
        {"iteration": 5, "seconds": -1}, {"iteration": 5, "seconds": "x"}, {"iteration": 3, "seconds": 1.0},
    ],
)  # fmt: skip
def test_a_checkpoint_that_describes_itself_oddly_is_left_out(description: Any, trained: Trained) -> None:
    run = trained("ppga")
    data = run / "checkpoints" / "000005.safetensors"
    save(data, read_tensors(data)[0], description)
    assert "resuming after iteration 4" in resumed(run)


ODD_JSON = {
    "nothing": b"", "a list": b"[]", "a number": b"5", "null": b"null", "deep": DEEP.encode(),
    "rather deep": RATHER_DEEP.encode(), "digits": DIGITS.encode(), "half a character": HALF.encode(),
    "no text": b"\xff\xfe", "too long": b" " * (2**24 + 1), "no JSON": b"{",
}  # fmt: skip
ODD_CHECKSUMS = {
    "a version of digits": f'{{"version": {DIGITS}}}', "an infinite version": '{"version": 1e999}',
    "no checksum": '{"version": 1}', "a checksum that is a number": '{"version": 1, "sha256": 5}',
    "a checksum that is NaN": '{"version": 1, "sha256": NaN}',
    "a deep checksum": f'{{"version": 1, "sha256": {DEEP}}}',
}  # fmt: skip


@pytest.mark.parametrize("odd", [*ODD_JSON, *ODD_CHECKSUMS])
def test_a_checkpoint_with_odd_json_is_left_out(odd: str, trained: Trained) -> None:
    run = trained("ppga")
    content = ODD_JSON[odd] if odd in ODD_JSON else ODD_CHECKSUMS[odd].encode()
    (run / "checkpoints" / "000005.json").write_bytes(content)
    assert "resuming after iteration 4" in resumed(run)


@pytest.mark.parametrize("name", ["²", "000009999999999", "-1", "٣"])
def test_other_files_among_the_checkpoints_do_no_harm(name: str, trained: Trained) -> None:
    run = trained("ppga")
    (run / "checkpoints" / f"{name}.json").write_text("{}")
    assert "resuming after iteration 5" in resumed(run)


def test_when_no_checkpoint_can_be_used_the_command_says_why(trained: Trained) -> None:
    run = trained("ppga")
    before = (run / "metrics.jsonl").read_bytes()
    for data in (run / "checkpoints").glob("*.safetensors"):
        arrays, description = read_tensors(data)
        save(data, arrays | {"idle": np.zeros(9)}, description)
    message = refused(command("train", "--resume", str(run), "--iterations", "7"))
    assert "all checkpoints in" in message
    assert "'idle'" in message
    assert (run / "metrics.jsonl").read_bytes() == before


# config.json.


def entry(name: str, value: Any) -> Callable[[Path], Any]:
    """Another entry in a table that is a JSON file."""
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))


def besides_in(text: str) -> Callable[[Path], Any]:
    """One more entry, of any JSON."""
    return lambda file: file.write_text(f"{file.read_text().rstrip().removesuffix('}')}, {text}}}")


SETTINGS: list[dict[str, Any]] = [
    {"seed": "x"}, {"seed": 10**30}, {"seed": -1}, {"seed": [0] * 100_000}, {"cluster": ["ray"]},
    {"archive": {"shape": [10**6, 10**6]}}, {"archive": {"shape": [50_000, 40_000]}},
    {"archive": {"shape": [10**39] * 2}}, {"archive": {"kind": "cvt", "cells": 2_000_000_000}},
    {"search": {"sigma0": math.nan}}, {"search": {"branches": 10**39}}, {"search": {"branches": 10**9}},
    {"search": {"emitters": 10**9}}, {"search": {"recheck": 10**9}}, {"search": {"es_samples": 10**9}},
    {"network": {"actor": [10**39]}}, {"simulation": {"threads": 10**39}},
    {"keeping": {"checkpoint_seconds": math.inf}},
]  # fmt: skip
ODD_ENTRIES: dict[str, tuple[Any, ...]] = {
    "task": (5, None, [], {}, "a\nb", "\x1b[2Jsphere", "x" * 100_000),
    "config": (None, 5, "x", [], *SETTINGS),
    "budget": (None, 5, "x", [], {}, {"iterations": "x"}, {"minutes": math.inf}, {"minutes": -1}),
    "problem": ("x", 5, [], ["task"], {"task": 5}, {"task": "x"}, {"x": {"y": 1}}, {"task": [1]}),
    "machine": ([], 5, "x", None, {"versions": 3}, {"versions": None}, {"versions": [1]}),
    "commit": (5, []),
    "begun": (5, []),
    "format": (5, None, []),
    "version": (5, None, [], "1"),
}


def instead(content: bytes) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(content)


CONFIGS: dict[str, Callable[[Path], Any]] = {
    **{
        f"{name} {number}": entry(name, value)
        for name, values in ODD_ENTRIES.items()
        for number, value in enumerate(values)
    },
    "deep": besides_in(f'"x": {DEEP}'),
    "rather deep": besides_in(f'"x": {RATHER_DEEP}'),
    "digits": besides_in(f'"x": {DIGITS}'),
    "minutes beyond all": besides_in('"budget": {"minutes": 1e999}'),
    "half a character": besides_in(f'"x": {HALF}'),
    **{f"{name}, instead": instead(content) for name, content in ODD_JSON.items()},
}


@pytest.mark.parametrize("odd", CONFIGS)
def test_an_odd_config_is_refused_in_one_line(odd: str, trained: Trained) -> None:
    run = trained("ppga")
    CONFIGS[odd](run / "config.json")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    refused(command("train", "--resume", str(run), "--iterations", "7"))
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("odd", CONFIGS)
def test_an_odd_config_is_told_to_who_only_looks(odd: str, trained: Trained, tmp_path: Path) -> None:
    run = trained("ppga")
    CONFIGS[odd](run / "config.json")
    with contextlib.suppress(InputError):
        report.summary([read_run(run)])
    out = str(tmp_path / "out.safetensors")
    done = command("export", str(run), "--format", "archive", "--output", out)
    assert done.returncode == 0 or refused(done)


def test_settings_that_no_memory_or_time_suffices_for_are_refused() -> None:
    config, _ = ppga.preset("smoke", "hopper")
    long = replace(config, simulation=replace(config.simulation, episode_length=LONGEST_EPISODE + 1))
    with pytest.raises(InputError, match="episode_length must be at most 100,000"):
        make_algorithm("hopper", long)
    with pytest.raises(InputError, match="at most 100,000"):
        ppga.make_task("hopper", episode_length=LONGEST_EPISODE + 1)


# Metrics, snapshots of cells, corrected figures, studies.


def line(**change: Any) -> Callable[[Path], Any]:
    """A last line of metrics with another entry, or without it."""

    def make(run: Path) -> None:
        file = run / "metrics.jsonl"
        *before, last = file.read_text().splitlines()
        content = {name: value for name, value in (json.loads(last) | change).items() if value is not ...}
        file.write_text("\n".join([*before, json.dumps(content), ""]))

    return make


def raw_line(content: str) -> Callable[[Path], Any]:
    return lambda run: (run / "metrics.jsonl").write_text(f"{content}\n")


def figures(content: str) -> Callable[[Path], Any]:
    """Figures of a corrected archive, which is there."""

    def make(run: Path) -> None:
        shutil.copy(run / "archive" / "archive.safetensors", run / "archive" / "corrected.safetensors")
        (run / "archive" / "evaluation.json").write_text(content)

    return make


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
    "search_measures": (5, [], [5], [[1, "x"]], [[1, 2], [1]], {"a": 1}, "xy", [[]]),
    "xnes_mean": (5, [], [5], [["x"]], "xyz"),
    "xnes_scale": (5, [], ["x"]),
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
LOOKED_AT: dict[str, Callable[[Path], Any]] = {
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


@pytest.mark.parametrize("odd", LOOKED_AT)
def test_who_looks_at_an_odd_run_is_told(odd: str, finished: Trained, tmp_path: Path) -> None:
    """What a report, an export, a study and the page read of it is used, or refused in plain words."""
    run = tmp_path / "study" / "sphere" / "ppga-0"
    shutil.copytree(finished("ppga"), run)
    LOOKED_AT[odd](run)
    budget = ppga.Budget(iterations=5)
    planned = study.plan(["sphere"], ["ppga"], 1, budget, "smoke", 3, tmp_path / "study")
    (one,) = planned.runs()
    looks: list[Callable[[], Any]] = [
        lambda: report.summary(read_runs([run])[0]),
        lambda: list(read_run(run).snapshots()),
        lambda: export.to_archive(load_archive(run), find_archive(run), tmp_path / "out.safetensors"),
        lambda: study.finished(one, planned),
        lambda: study.went_on(one, planned),
        lambda: study.spent(run),
        lambda: json.dumps(Source(run).path_of_search(), allow_nan=False),
    ]
    for look in looks:
        with contextlib.suppress(InputError):
            look()


def test_a_report_says_what_it_cannot_draw(finished: Trained, tmp_path: Path) -> None:
    run, other = (shutil.copytree(finished("ppga"), tmp_path / name) for name in ("run", "other"))
    line(search_measures=[[1]], xnes_mean=[])(run)
    snapshot(cells=[1])(run)
    line(wall_time="x")(other)
    done = command("report", str(run), str(other), "--output", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.html").read_text()
    for words in (
        "where the search policy went: could not be drawn", "mean and step size: could not be drawn",
        "how the archive grew: could not be drawn", "wall_time of iteration 5 cannot be &#x27;x&#x27;",
    ):  # fmt: skip
        assert words in page


@pytest.mark.parametrize("content", [*ODD_JSON.values(), b'{"preset": NaN}', b'{"preset": []}'])
def test_an_odd_study_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes(content)
    words = ("--tasks", "sphere", "--algorithms", "ppga", "--preset", "smoke", "--output", str(tmp_path))
    assert "study" in refused(command("study", *words, "--evaluations", "20", "--dry-run"))
