"""Hostile archives: one plain error, exit code 2, and no more memory than the file takes."""

import json
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppga
from ppga import machine
from ppga.analysis import plots
from ppga.archives import Archive, heatmaps, load_archive
from ppga.errors import InputError
from ppga.limits import LARGEST_JSON, MOST_CELLS
from ppga.runs.build import make_algorithm
from ppga.runs.results import check_initial_archive, to_archive
from ppga.storage import parse_json, write_tensors
from ppga.viewer.source import cells_of

from helpers.archives import archive
from helpers.commands import command
from helpers.untrusted import DEEP, DIGITS, HALF, RATHER_DEEP, change_description, joined, parts, refused

MOST_MEMORY = 64 * 2**20
"""Maximum bytes for rejecting a file of some kilobytes."""
Make = Callable[[Path], Any]


@contextmanager
def little_memory(most: int = MOST_MEMORY) -> Iterator[None]:
    """Fail if more memory than that is allocated, used or not."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def with_kind(kind: str, bits: int) -> Make:
    """Add an array of another type of numbers."""

    def make(file: Path) -> None:
        header, data = parts(file)
        end = len(data) + 24 * bits // 8
        header["elites/extra"] = {"dtype": kind, "shape": [3, 8], "data_offsets": [len(data), end]}
        file.write_bytes(joined(header, data + bytes(end - len(data))))

    return make


def described(**changes: Any) -> Make:
    """Change entries of the description; part__name is an entry of a part."""

    def change(description: dict[str, Any]) -> None:
        for name, value in changes.items():
            part, _, key = name.rpartition("__")
            (description[part] if part else description)[key] = value

    return lambda file: change_description(file, change)


def in_header(text: str) -> Make:
    """Add an entry to the header, any JSON text."""

    def make(file: Path) -> None:
        header, data = parts(file)
        file.write_bytes(joined(json.dumps(header)[:-1] + f', "elites/extra": {text}}}', data))

    return make


def in_description(text: str) -> Make:
    """Add an entry to the description, any JSON text."""

    def make(file: Path) -> None:
        header, data = parts(file)
        description = header["__metadata__"]["ppga"]
        header["__metadata__"]["ppga"] = description[:-1] + f', "extra": {text}}}'
        file.write_bytes(joined(header, data))

    return make


def entry(**changes: Any) -> Make:
    """Change the entry of an array in the header."""

    def make(file: Path) -> None:
        header, data = parts(file)
        header["elites/objective"] |= changes
        file.write_bytes(joined(header, data))

    return make


def without(field: str) -> Make:
    def make(file: Path) -> None:
        loaded = load_archive(file)
        rest = {name: values for name, values in loaded.elites.items() if name != field}
        Archive(loaded.description, rest).save(file)

    return make


def with_field(field: str, values: Any) -> Make:
    def make(file: Path) -> None:
        loaded = load_archive(file)
        Archive(loaded.description, {**loaded.elites, field: np.asarray(values)}).save(file)

    return make


def header_length(length: int) -> Make:
    return lambda file: file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])


def long_header(file: Path) -> None:
    """A header of 100 MB in a sparse file of zeros."""
    with file.open("wb") as output:
        output.write((10**8).to_bytes(8, "little") + b"{")
        output.truncate(2 * 10**8)


def overlapping(file: Path) -> None:
    """A thousand arrays that share three megabytes of a file."""
    header, data = parts(file)
    data += bytes(3 * 2**20)
    header |= {
        f"elites/{number}": {"dtype": "U8", "shape": [3, 2**20], "data_offsets": [0, 3 * 2**20]}
        for number in range(1000)
    }
    file.write_bytes(joined(header, data))


HOSTILE: dict[str, Make] = {
    **{
        kind: with_kind(kind, bits)
        for kind, bits in {
            "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "BF16": 16,
            "C64": 64,
        }.items()
    },
    "a deep header": in_header(DEEP),
    "a rather deep header": in_header(RATHER_DEEP),
    "a deep description": in_description(DEEP),
    "a rather deep description": in_description(RATHER_DEEP),
    "digits in the header": in_header(DIGITS),
    "digits in a shape": in_header(f'{{"dtype": "F32", "shape": [{DIGITS}], "data_offsets": [0, 8]}}'),
    "digits in the description": in_description(DIGITS),
    "an offset of 300 digits": described(qd_offset=10**300),
    "an offset of 3000 digits": described(qd_offset=10**3000),
    "an offset beyond single precision": described(qd_offset=1e308),
    "an offset that is infinite": described(qd_offset=math.inf),
    "half a character": in_description(HALF),
    "a header longer than the file": header_length(2**62),
    "a header of 100 MB": long_header,
    "a shape of words": entry(shape=["3"]),
    "a shape below 0": entry(shape=[-3]),
    "a shape of very many numbers": entry(shape=[10**30] * 10_000),
    "bytes that are not there": entry(data_offsets=[0, 10**15], shape=[10**15 // 4]),
    "arrays that overlap": overlapping,
    **{
        f"no {field}": without(field)
        for field in ("objective", "log_std", "observation_mean", "observation_variance", "observation_count")
    },
    "a variance below 0": with_field("observation_variance", np.full((3, 5), -1, np.float32)),
    "a row of counts": with_field("observation_count", np.ones((3, 2), np.float32)),
    "rows of episodes": with_field("episodes", np.ones((3, 2), np.int32)),
    "more episodes than can be counted": with_field("episodes", np.full(3, 2**63 - 1, np.int64)),
    "an index that wraps around": with_field("index", np.array([7, 2**32 - 5, 3], np.uint32)),
    "whole numbers for objectives": with_field("objective", np.ones(3, np.int32)),
    "an objective beyond single precision": with_field("objective", np.full(3, 1e300)),
    "2e9 cells": described(shape=[50_000, 40_000]),
    "1e12 cells": described(shape=[10**6, 10**6]),
    "1e600 cells": described(shape=[10**300, 10**300]),
    "2e9 cells of a CVT": described(kind="cvt", shape=[2_000_000_000]),
    "more measures than NumPy has axes": described(
        shape=[1] * 100, ranges=[[0, 1]] * 100, measure_names=["a"] * 100
    ),
    "an episode of 2e9 steps": described(task__episode_length=2_000_000_000),
    "an episode of 1e300 steps": described(task__episode_length=10**300),
    "an episode of no steps": described(task__episode_length=0),
    "ranges beyond single precision": described(ranges=[[-1e300, 1e300], [0, 1]]),
    "ranges without width in single precision": described(ranges=[[1.0, 1.0 + 1e-12], [0, 1]]),
    "ranges that are NaN": described(ranges=[[math.nan, 1.0], [0, 1]]),
    "a clip that is NaN": described(network__observation_clip=math.nan),
    "a network without layers": described(network__sizes=[5]),
    "a network of 1e300 units": described(network__sizes=[5, 10**300, 3]),
    "a control range of words": described(task__control_range=[["a", "b"]] * 3),
    "a control range of another robot": described(task__control_range=[[0, 1]] * 2),
    "a control range that is infinite": described(task__control_range=[[0, math.inf]] * 3),
    "a time step of words": described(task__control_dt="fast"),
    "a task that is none": described(task=5),
    "a task whose name is a list": described(task__name=["mine"]),
    "a name without end": described(measure_names=["a", "b" * 10**6]),
    "an iteration of words": described(iteration="last"),
    "a seed of words": described(seed="none"),
}  # fmt: skip


@pytest.fixture
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "archive.safetensors"
    archive().save(file)
    HOSTILE[request.param](file)
    return file


@pytest.mark.parametrize("hostile", HOSTILE, indirect=True)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_hostile_archive_is_rejected(hostile: Path, mapped: bool) -> None:
    with pytest.raises(InputError, match=r"archive\.safetensors"), little_memory():
        load_archive(hostile, mapped=mapped)


@pytest.mark.parametrize("hostile", HOSTILE, indirect=True)
def test_every_command_rejects_a_hostile_archive_in_one_line(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: Any) -> None:
        raise AssertionError("the viewer must not start")

    monkeypatch.setattr("ppga.viewer.server.PageServer", serve)
    out = str(hostile.parent / "out")
    for words in (
        ("evaluate", str(hostile), "--episodes", "1", "--output", out),
        ("compare", str(hostile), str(hostile), "--output", f"{out}.png"),
        ("view", str(hostile.parent), "--no-browser"),
        ("export", str(hostile), "--best", "--format", "npz", "--output", out),
    ):
        assert "archive.safetensors" in refused(command(*words)), words


LIMITED = """
import json, resource, sys
import jax
from ppga.analysis import corrected, plots, report
from ppga.cli import main
from ppga.viewer import server
jax.devices()
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]),) * 2)
for words in json.loads(sys.argv[2]):
    sys.argv = ["ppga", *words]
    try:
        main()
        print("exit code 0")
    except SystemExit as end:
        print("exit code", end.code)
"""


def limited(commands: list[list[str]], memory: int) -> subprocess.CompletedProcess[str]:
    """Run commands in one process that cannot allocate more than that many further bytes."""
    arguments = [sys.executable, "-c", LIMITED, str(memory), json.dumps(commands)]
    # glibc reserves 64 MiB of addresses for a new thread; one that cannot start is waited for without end
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    return subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=300, env=environment
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_rejecting_a_file_takes_little_memory(tmp_path: Path) -> None:
    """In a process with a memory limit, where a large allocation would end in a traceback."""
    names = (
        "F8_E4M3", "a deep header", "a deep description", "digits in the description", "arrays that overlap",
        "a header longer than the file", "a header of 100 MB", "no observation_count", "2e9 cells",
        "1e12 cells", "2e9 cells of a CVT", "an episode of 2e9 steps",
    )  # fmt: skip
    commands = []
    for name in names:
        folder = tmp_path / name
        file = folder / "archive.safetensors"
        archive().save(file)
        HOSTILE[name](file)
        commands += [
            ["evaluate", str(file), "--episodes", "1", "--output", str(folder)],
            ["compare", str(file), str(file), "--output", str(folder / "out.png")],
            ["view", str(file), "--no-browser"],
            ["report", str(file), "--output", str(folder / "report")],
        ]
    done = limited(commands, 128 * 2**20)
    assert done.stdout.count("exit code 2") == len(commands), done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(commands), done.stderr
    assert all(line.startswith("ppga: ") for line in lines)


def test_an_archive_with_the_maximum_number_of_cells_needs_little_memory(tmp_path: Path) -> None:
    """Memory depends on the number of elites and the size of images, not on the number of cells."""
    shape = (5000, MOST_CELLS // 5000)
    large = archive(cells=(0, 1, 7_654_321))
    large.description["shape"] = list(shape)
    large.save(tmp_path / "archive.safetensors")
    loaded = load_archive(tmp_path, mapped=True)
    with little_memory(2 * MOST_MEMORY):
        text = heatmaps.text(loaded.shape, loaded.elites["index"], loaded.elites["objective"])
        assert text.plain.count("█") == 4
        heatmaps.png(loaded, tmp_path / "heatmap.png")
        plots.save(plots.difference(loaded, loaded), tmp_path / "difference.png")
        plots.ccdf({"all": [loaded]})
        json.dumps(cells_of(loaded), allow_nan=False)
        assert loaded.coverage == 3 / MOST_CELLS
        loaded.nearest([0.5, 0.5])
    coarse = loaded.on_grid((2, 2))
    assert len(coarse) <= 3
    ribs = loaded.to_ribs()
    assert len(ribs) == len(np.unique(loaded.cells_of(loaded.elites["measures"])))


def test_conversion_to_pyribs_that_needs_too_much_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    example = archive()
    assert len(example.to_ribs()) == 3
    monkeypatch.setattr(machine, "free_memory", lambda: 4 * 9 * 112)  # solutions alone take as much
    with pytest.raises(InputError, match="9 cells, each of 1"):
        example.to_ribs()


def test_a_grid_of_too_many_cells_is_rejected() -> None:
    with pytest.raises(InputError, match="at most 10,000,000 cells"):
        archive().on_grid((100_000, 100_000))
    with pytest.raises(InputError, match="at most 10,000,000 cells"):
        make_algorithm("sphere", ppga.PPGAConfig(archive=ppga.SoftArchiveConfig(shape=(10**6, 10**6))))


@pytest.mark.parametrize("shape", [(30, 20), (7, 90), (6, 5, 4), (3, 4, 5, 6), (500,), (1, 40)])
def test_a_coarse_heatmap_shows_the_best_of_cells_that_share_a_pixel(shape: tuple[int, ...]) -> None:
    """Compared with the plane of all cells, in blocks from its upper left corner."""
    draws = np.random.default_rng(0)
    cells = np.sort(draws.choice(math.prod(shape), math.prod(shape) // 3, replace=False))
    values = draws.normal(size=len(cells))
    order = np.argsort(values)
    fine = heatmaps.plane(shape, cells, values)
    for up, across in ((1, 1), (2, 3), (5, 2), (50, 1)):
        coarse = heatmaps.plane(shape, cells[order], values[order], (up, across))
        for row in range(coarse.shape[0]):
            for column in range(coarse.shape[1]):
                block = fine[up * row : up * (row + 1), across * column : across * (column + 1)]
                known = block[np.isfinite(block)]
                if len(known):
                    assert coarse[row, column] == known.max()
                else:
                    assert np.isnan(coarse[row, column])


def test_measures_beyond_the_ranges_belong_to_the_outermost_cells() -> None:
    """At any distance, although pyribs counts in 32 bits."""
    example = archive()
    far = np.array([[-1e30, 0.5], [1e30, 0.5], [0.5, 4e9], [1.0, 0.0], [0.5, 0.5]], np.float32)
    np.testing.assert_array_equal(example.cells_of(far), [1, 7, 5, 6, 4])


def test_an_initial_archive_with_other_measures_is_rejected() -> None:
    """Even if its description matches."""
    algorithm = make_algorithm("sphere", ppga.PPGAConfig())
    trained = ppga.train("sphere", budget=ppga.Budget(iterations=1)).archive
    check_initial_archive(trained, algorithm)
    other = replace(trained, elites={**trained.elites, "measures": np.zeros((len(trained), 3), np.float32)})
    with pytest.raises(InputError, match="measures does not fit"):
        check_initial_archive(other, algorithm)


def test_an_initial_archive_with_other_statistics_of_returns_is_rejected() -> None:
    config = ppga.preset("smoke", "hopper")[0]
    own = {"ppo.normalize": "returns", "objective.scaling": "raw"}
    theirs, ours = (make_algorithm("hopper", config.replace(**changes)) for changes in ({}, own))
    shapes = {"solution": (theirs.problem.solution_size,), "measures": (1,), **theirs.problem.fields}
    elites = {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
    archive = Archive(to_archive(theirs).description, {"index": np.array([5]), **elites})
    check_initial_archive(archive, theirs)
    message = r"returns_mean does not fit: it has shape \(2,\).* needs \(1,\). Choose the --ppo.normalize"
    with pytest.raises(InputError, match=message):
        check_initial_archive(archive, ours)


def test_included_archives_pass_all_checks() -> None:
    for name in ppga.pretrained():
        assert len(ppga.pretrained(name))


def test_a_header_that_is_too_large_to_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="header of 16,"):
        write_tensors(tmp_path / "x.safetensors", {"x": np.zeros(1)}, "x" * LARGEST_JSON)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("1e999", math.inf), ("[NaN, -Infinity]", [math.nan, -math.inf]), ('{"a": 1, "a": 2}', {"a": 2}),
        (f"[{'1' * 40}]", [int("1" * 40)]), (f'"{DIGITS}"', DIGITS), ('"\\ud83d\\ude00"', "\U0001f600"),
        ("[" * 100 + "]" * 100, None), (f"0.{'1' * 5000}", float(f"0.{'1' * 20}")),
        (f"[{'[],' * 10_000}[]]", [[]] * 10_001),
    ],
)  # fmt: skip
def test_unusual_json_is_read(text: str, content: Any) -> None:
    parsed = parse_json(text.encode())
    assert content is None or repr(parsed) == repr(content)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, DEEP, DIGITS, f"-{DIGITS}", "1" * 41, HALF,
        '{"\\udc00": 1}', "", "{", "[1,]", "\x00", "nul", "'a'",
    ],
    ids=range(14),
)  # fmt: skip
def test_json_that_python_cannot_handle_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text.encode())
