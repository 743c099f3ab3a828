"""Arbitrary files, settings and requests: the answer is a result or one plain message.

`make fuzz` tries many more examples (PPGA_FUZZ is the number of examples of each test).
"""

import dataclasses
import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some

import ppga
from ppga import InputError
from ppga.algorithms import ALGORITHMS
from ppga.algorithms.sep_cma_mae import SepCMAMAEConfig
from ppga.analysis import plots, report
from ppga.analysis.runs import read_run
from ppga.archives import Archive, heatmaps, load_archive
from ppga.config import from_json, setting_types, to_json, without_none
from ppga.limits import MOST_CELLS
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP
from ppga.runs import checkpoints, trainer
from ppga.runs.build import make_algorithm
from ppga.runs.folder import RunFolder
from ppga.storage import parse_json
from ppga.strategies import StrategyConfig
from ppga.tasks import TASKS
from ppga.viewer.source import Source, cells_of
from ppga.viewer.viewer import Viewer

from helpers.archives import archive
from helpers.commands import command
from helpers.slider import Slider
from helpers.untrusted import joined, refused

EXAMPLES = int(os.environ.get("PPGA_FUZZ", "40"))
fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
slow = settings(max_examples=max(8, EXAMPLES // 10), suppress_health_check=list(HealthCheck))
"""Fewer examples where each compiles a task."""
JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**70), 2**70) | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KINDS = [
    "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F4", "C64", "I64", "I32", "I16",
    "I8", "U64", "U32", "U16", "U8", "BOOL", "X", "",
]  # fmt: skip
"""Types of numbers in safetensors files, and types that do not exist."""


def corrupt(data: some.DataObject, table: dict[str, Any]) -> None:
    """Replace a random entry of a nested table by arbitrary JSON."""
    while True:
        key = data.draw(some.sampled_from(sorted(table)))
        if not isinstance(table[key], dict) or not table[key] or data.draw(some.booleans()):
            table[key] = data.draw(JSON)
            return
        table = table[key]


# Archives.


@cache
def content(make: Callable[[], Archive]) -> bytes:
    """Content of an archive's file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "archive.safetensors"
        make().save(file)
        return file.read_bytes()


def sliders() -> Archive:
    """An archive whose elites are evaluated quickly."""
    network, draws = Network((2, 2, 1)), np.random.default_rng(0)
    elites = {
        "index": np.array([0, 2], np.int32),
        "solution": draws.normal(size=(2, network.parameters)).astype(np.float32),
        "objective": np.array([1, 2], np.float32),
        "measures": np.array([[-0.9], [0.2]], np.float32),
        "log_std": np.zeros((2, 1), np.float32),
        "observation_mean": np.zeros((2, 2), np.float32),
        "observation_variance": np.ones((2, 2), np.float32),
        "observation_count": np.ones(2, np.float32),
    }
    description = {
        "task": {
            "name": "slider", "physics": "mujoco", "episode_length": 3, "integrator": "fast",
            "control_range": [[-1, 1]], "control_dt": 0.004,
        },
        "network": {**network.describe(), "observation_clip": CLIP}, "kind": "grid", "algorithm": "ppga",
        "seed": 0, "iteration": 3, "shape": [4], "ranges": [[-1, 1]],
        "measure_names": ["place"], "qd_offset": 0.0,
    }  # fmt: skip
    return Archive(description, elites)


def other_bytes(data: some.DataObject, original: bytes) -> bytes:
    """A file with some bytes changed, removed or inserted."""
    changed = bytearray(original)
    for _ in range(data.draw(some.integers(1, 6))):
        at = data.draw(some.integers(0, len(changed) - 1))
        kind = data.draw(some.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip":
            changed[at] ^= data.draw(some.integers(1, 255))
        elif kind == "cut":
            del changed[at : at + data.draw(some.integers(1, 200))]
        elif kind == "insert":
            changed[at:at] = data.draw(some.binary(max_size=40))
        else:
            changed[at:at] = changed[at : at + 64]
        assume(len(changed) > 0)
    return bytes(changed)


def other_description(data: some.DataObject, original: bytes) -> bytes:
    """An archive whose description has an arbitrary entry."""
    header, rest = split(original)
    description = json.loads(header["__metadata__"]["ppga"])
    corrupt(data, description)
    header["__metadata__"]["ppga"] = json.dumps(description)
    return joined(header, rest)


def other_header(data: some.DataObject, original: bytes) -> bytes:
    """An archive whose header has huge sizes, names with paths, unknown types or arbitrary JSON."""
    header, rest = split(original)
    name = data.draw(some.sampled_from([key for key in header if key != "__metadata__"]))
    kind = data.draw(some.sampled_from(["dtype", "shape", "data_offsets", "name", "anything"]))
    if kind == "name":
        header[data.draw(some.sampled_from(["../../etc/passwd", "/root", "elites/" + "x" * 300, ""]))] = (
            header.pop(name)
        )
    elif kind == "dtype":
        header[name]["dtype"] = data.draw(some.sampled_from(KINDS))
    elif kind == "anything":
        corrupt(data, header)
    else:
        header[name][kind] = data.draw(some.lists(some.integers(-5, 2**63), max_size=4))
    return joined(header, rest)


def other_numbers(data: some.DataObject, original: bytes) -> bytes:
    """An archive with arbitrary numbers, possibly of another type of the same size."""
    header, rest = split(original)
    arrays, name = (
        bytearray(rest),
        data.draw(some.sampled_from([key for key in header if key != "__metadata__"])),
    )
    start, end = header[name]["data_offsets"]
    number = np.float32(data.draw(some.floats(width=32) | some.sampled_from([-1.0, 1e38, -1e38])))
    for at in data.draw(some.lists(some.integers(0, (end - start) // 4 - 1), min_size=1, max_size=3)):
        arrays[start + 4 * at : start + 4 * at + 4] = number.tobytes()
    if data.draw(some.booleans()):
        header[name]["dtype"] = data.draw(some.sampled_from(["I32", "U32", "F32"]))
    return joined(header, bytes(arrays))


def other_values(data: some.DataObject, original: bytes) -> bytes:
    """An archive whose description has another value of the correct type."""
    numbers, words = some.floats(allow_nan=False, allow_infinity=False, width=32), some.text(max_size=20)
    header, rest = split(original)
    description = json.loads(header["__metadata__"]["ppga"])
    part, key, values = data.draw(
        some.sampled_from(
            [
                (description, "algorithm", words),
                (description, "kind", words),
                (description, "qd_offset", numbers),
                (description, "shape", some.integers(3, MOST_CELLS).map(lambda size: [size])),
                (description, "ranges", some.tuples(numbers, numbers).map(sorted).map(lambda pair: [pair])),
                (description, "measure_names", words.map(lambda word: [word])),
                (description, "extra", JSON),
                (description["task"], "name", words),
                (description["task"], "physics", words),
                (description["task"], "integrator", some.sampled_from(["gymnasium"]) | words),
                (description["task"], "episode_length", some.integers(1, 3000)),
                (description["task"], "control_dt", some.none() | numbers.map(abs)),
                (description["task"], "extra", JSON),
                (description["network"], "activation", some.just("relu")),
                (description["network"], "head", some.just("tanh")),
                (description["network"], "observation_clip", numbers.map(abs)),
            ]
        )
    )
    part[key] = data.draw(values)
    header["__metadata__"]["ppga"] = json.dumps(description)
    return joined(header, rest)


CORRUPTIONS = [other_values, other_numbers, other_values, other_bytes, other_description, other_header]
"""Ways to change an archive; those after which it mostly loads are listed more than once."""


def split(original: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    size = int.from_bytes(original[:8], "little")
    return json.loads(original[8 : 8 + size]), original[8 + size :]


def read(data: bytes) -> Archive | None:
    """The archive in a file with this content, loaded and mapped; None if both raise an InputError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "archive.safetensors"
        file.write_bytes(data)
        found: list[Archive | None] = []
        for mapped in (False, True):
            try:
                found.append(load_archive(file, mapped=mapped))
            except InputError:
                found.append(None)
        original, mapped_archive = found
        assert (original is None) == (mapped_archive is None)
        if original is None or mapped_archive is None:
            return None
        same(original, mapped_archive)
        for name, values in safetensors.numpy.load_file(file).items():
            if name.startswith("elites/"):
                np.testing.assert_array_equal(values, original.elites[name.removeprefix("elites/")])
        for each in (original, mapped_archive):
            usable(each)
        return original


def same(one: Archive, other: Archive) -> None:
    """Compare two archives bit by bit."""
    assert json.dumps(one.description) == json.dumps(other.description)
    assert {*one.elites} == {*other.elites}
    for name, values in one.elites.items():
        np.testing.assert_array_equal(values, other.elites[name])
        assert values.dtype == other.elites[name].dtype


def usable(found: Archive) -> None:
    """Use an archive in all ways; none may fail."""
    assert math.isfinite(found.qd_score)
    assert 0 <= found.coverage <= 1
    index, objective = found.elites["index"], found.elites["objective"]
    heatmaps.text(found.shape, index, objective)
    plots.compare_cells(found, found)
    cells_of(found)
    if len(found):
        found.nearest([0.0] * len(found.ranges))
        found.elite(found.best())
        assert (found.cells_of(found.elites["measures"]) < found.cells).all()
        heatmaps.picture(found.shape, index, objective)
        for cell in index.tolist():
            heatmaps.place(found, cell)


@fuzz
@given(some.data())
def test_a_damaged_archive_is_rejected_or_usable(data: some.DataObject) -> None:
    read(other_bytes(data, content(archive)))


@fuzz
@given(some.binary(max_size=400))
def test_arbitrary_bytes_are_not_an_archive(data: bytes) -> None:
    assert read(data) is None


@fuzz
@given(some.data())
def test_an_archive_with_an_arbitrary_description_is_rejected_or_usable(data: some.DataObject) -> None:
    read(other_description(data, content(archive)))


@fuzz
@given(some.data())
def test_an_archive_with_an_arbitrary_header_is_rejected_or_usable(data: some.DataObject) -> None:
    read(other_header(data, content(archive)))


@fuzz
@given(some.data())
def test_an_archive_of_arbitrary_numbers_is_rejected_or_usable(data: some.DataObject) -> None:
    read(other_numbers(data, content(archive)))


def test_huge_sizes_take_no_memory() -> None:
    original = content(archive)
    header, rest = split(original)
    for shape in ([2**40], [2**31, 2**31], [0, 2**62], [2**62, 0]):
        changed = json.loads(json.dumps(header))
        changed["elites/solution"]["shape"] = shape
        assert read(joined(changed, rest)) is None
    assert read((2**62).to_bytes(8, "little") + original[8:]) is None


@pytest.fixture
def slider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the task."""
    monkeypatch.setitem(TASKS, "slider", Slider)


@pytest.mark.usefixtures("slider")
@slow
@given(some.data())
def test_any_archive_is_rejected_or_evaluated_compared_and_viewed(data: some.DataObject) -> None:
    """By commands, which end with a result or one line, and by the functions behind the viewer's page."""
    corrupted = data.draw(some.sampled_from(CORRUPTIONS))
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that a font does not have
        file, out = Path(name) / "archive.safetensors", Path(name) / "out"
        file.write_bytes(corrupted(data, content(sliders)))
        for words in (
            ("compare", str(file), str(file), "--output", f"{out}.png"),
            ("evaluate", str(file), "--episodes", "1", "--output", str(out)),
        ):
            done = command(*words)
            assert done.returncode == 0 or refused(done), words
        if (out / "corrected.safetensors").exists():
            usable(load_archive(out / "corrected.safetensors"))
        viewer = Viewer(file, "127.0.0.1", 9200)
        try:
            viewer.ready()
            answer = None if viewer.stage is None else viewer.play({"slot": 1, "cell": None})
            json.dumps(answer)
        except InputError:
            pass
        finally:
            json.dumps([viewer.about(), viewer.cells("archived"), viewer.status()], allow_nan=False)
            viewer.close()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("measures", np.nan, "not finite"), ("objective", np.inf, "not finite"), ("index", 10**6, "cells"),
        ("index", -1, "cells"),
    ],
)  # fmt: skip
def test_invalid_values_of_elites_are_rejected(name: str, value: float, message: str, tmp_path: Path) -> None:
    made = archive()
    changed = {key: np.array(values) for key, values in made.elites.items()}
    changed[name].ravel()[0] = value
    Archive(made.description, changed).save(tmp_path / "archive.safetensors")
    with pytest.raises(InputError, match=message):
        load_archive(tmp_path)


# Checkpoints.


@fuzz
@given(some.data())
def test_a_damaged_checkpoint_is_skipped(data: some.DataObject) -> None:
    """After any change of either of its files, the previous checkpoint is used."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in (1, 2):
            state = {"theta": np.full(5, number, np.float32)}
            checkpoints.save(folder, checkpoints.Checkpoint(number, float(number), state))
        file = folder / data.draw(some.sampled_from(["000002.safetensors", "000002.json"]))
        bytes_ = bytearray(file.read_bytes())
        at = data.draw(some.integers(0, len(bytes_) - 1))
        if data.draw(some.booleans()):
            bytes_[at] ^= data.draw(some.integers(1, 255))
        else:
            del bytes_[at:]
        file.write_bytes(bytes(bytes_))
        messages: list[str] = []
        found = checkpoints.newest(folder, messages.append)
        assert found is not None
        if found.iteration == 2:  # the change was harmless, for example in white space
            assert messages == []
        else:
            assert len(messages) == 1
        np.testing.assert_array_equal(found.arrays["theta"], np.full(5, found.iteration, np.float32))


GRID = ppga.SoftArchiveConfig(shape=(10, 10), cells=20)
LOG = ppga.LoggingConfig(checkpoint_seconds=0, tensorboard=False)
SMALL = ppga.PPGAConfig(
    branches=8, walk_updates=1, strategy=StrategyConfig(sigma0=5.0), archive=GRID, log=LOG
)
SYSTEMS: dict[str, ppga.AlgorithmConfig] = {
    "xnes": SMALL,
    "cma-es": SMALL.replace(**{"strategy.kind": "cma-es"}),
    "sep-cma-mae": SepCMAMAEConfig(batch_size=8, sigma0=5.0, archive=GRID, log=LOG),
    "cvt": SMALL.replace(**{"archive.kind": "cvt"}),
}


@cache
def trained(system: str) -> tuple[ppga.AlgorithmConfig, dict[str, bytes]]:
    """Settings and checkpoint files of a run of two iterations."""
    config = SYSTEMS[system]
    with tempfile.TemporaryDirectory() as name:
        ppga.train("sphere", config, budget=ppga.Budget(iterations=2), output=Path(name) / "run")
        folder = RunFolder(Path(name) / "run").checkpoints
        return config, {file.name: file.read_bytes() for file in folder.iterdir()}


def other_array(data: some.DataObject, original: bytes) -> bytes:
    """A file with an array of another shape, type or name, or with arbitrary numbers."""
    arrays = {name: np.array(values) for name, values in safetensors.numpy.load(original).items()}
    name = data.draw(some.sampled_from(sorted(arrays)))
    values = arrays[name]
    kind = data.draw(some.sampled_from(["lose", "rename", "shape", "dtype", "numbers", "rows"]))
    if kind == "lose":
        del arrays[name]
    elif kind == "rename":
        arrays[name[: -data.draw(some.integers(1, 3))] + data.draw(some.sampled_from(["", "/x", "1"]))] = (
            arrays.pop(name)
        )
    elif kind == "shape":
        arrays[name] = data.draw(
            some.sampled_from([values[None], values.ravel(), values.T, values[..., None]])
        )
    elif kind == "dtype":
        kinds = [np.float32, np.float64, np.int32, np.int64, np.uint64, np.uint8, bool]
        arrays[name] = values.astype(data.draw(some.sampled_from(kinds)))
    elif kind == "rows" and values.ndim:
        arrays[name] = data.draw(
            some.sampled_from([values[1:], values[::-1], np.concatenate([values, values])])
        )
    elif values.size:
        number = data.draw(some.floats() | some.integers(-(2**31), 2**31))
        values.ravel()[data.draw(some.integers(0, values.size - 1))] = np.array(number).astype(values.dtype)
    header, _ = split(original)
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(values) for name, values in arrays.items()}, header["__metadata__"]
    )


@fuzz
@given(some.data())
def test_an_arbitrary_checkpoint_is_restored_exactly_or_skipped(data: some.DataObject) -> None:
    """The checksum is correct, so that the change reaches the code that loads it."""
    config, files = trained(data.draw(some.sampled_from(sorted(SYSTEMS))))
    corrupted = data.draw(some.sampled_from([other_bytes, other_description, other_header, other_array]))
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about casts of numbers that a type does not have
        folder = Path(name)
        for file, before in files.items():
            (folder / file).write_bytes(before)
        changed = corrupted(data, files["000002.safetensors"])
        (folder / "000002.safetensors").write_bytes(changed)
        description = json.loads(files["000002.json"]) | {"sha256": hashlib.sha256(changed).hexdigest()}
        (folder / "000002.json").write_text(json.dumps(description))
        messages: list[str] = []
        algorithm = make_algorithm("sphere", config)
        found = checkpoints.newest(folder, messages.append, lambda each: trainer._restore(algorithm, each))
        assert found is not None
        assert len(messages) == (found.iteration != 2)
        assert algorithm.iteration == found.iteration
        after = algorithm.state()
        assert {*after} == {*found.arrays}
        for key, values in found.arrays.items():
            if key.endswith("_rng"):  # white space may differ
                assert parse_json(values.tobytes()) == parse_json(after[key].tobytes())
            else:
                np.testing.assert_array_equal(values, after[key], err_msg=key)


# Settings.


def with_all_sections(config: ppga.AlgorithmConfig) -> ppga.AlgorithmConfig:
    """The config with default settings in its absent sections."""
    for name, kind in setting_types(type(config)):
        section, _ = without_none(kind)
        if dataclasses.is_dataclass(section) and getattr(config, name) is None:
            config = config.replace(**{name: section()})  # type: ignore[operator]
    return config


def bad_values(kind: Any) -> list[Any]:
    """Values that no setting of a type accepts."""
    text = str(kind)
    values: list[Any] = [{"a": 1}, [[]]]
    if kind is bool or "str" in text or "Literal" in text:
        return [*values, 3.5]
    if "tuple" in text:
        return [*values, [-1], ["x"]]
    if "float" in text:
        return [*values, math.nan, -math.inf, "much"]
    return [*values, -1, 1.5, True, "many"]


def error_with(config: ppga.AlgorithmConfig, name: str, value: Any) -> str:
    """The error of a config file with another value of a setting; empty if there is none."""
    content = to_json(config)
    *sections, last = name.split(".")
    section = content
    for part in sections:
        section = section[part]
    section[last] = value
    try:
        from_json(type(config), content).check(1)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_setting_accepts_a_bad_value(algorithm: str) -> None:
    """The error names the setting."""
    config = with_all_sections(ppga.preset("smoke", "hopper", algorithm)[0])
    kinds = dict(setting_types(type(config)))
    settings = [name for name, kind in kinds.items() if not dataclasses.is_dataclass(without_none(kind)[0])]
    assert {"seed", "archive.kind", "simulation.threads"} <= {*settings}
    for name in settings:
        for value in bad_values(kinds[name]):
            message = error_with(config, name, value)
            named = name.rpartition(".")[2] in message.replace("-", "_")
            assert named, f"{name} = {value!r}: {message or 'no error'}"


@fuzz
@given(some.data())
def test_an_arbitrary_config_file_is_rejected_or_usable(data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        config, budget = ppga.preset("smoke", "hopper")
        folder.create("hopper", config, budget, {"task": {}})
        table = json.loads(folder.config.read_text())
        corrupt(data, table)
        folder.config.write_text(json.dumps(table))
        try:
            _, read_config, _ = folder.read()
            read_config.check(1)
            folder.check_problem({"task": {}})
            folder.machine_differences()
            folder.change_budget(budget)
        except InputError:
            pass


@cache
def lines() -> list[dict[str, Any]]:
    """Metrics of a short run."""
    with tempfile.TemporaryDirectory() as name:
        config, _ = trained("xnes")
        ppga.train("sphere", config, budget=ppga.Budget(iterations=2), output=Path(name) / "run")
        return [json.loads(line) for line in (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()]


@fuzz
@given(some.data())
def test_arbitrary_metrics_are_rejected_or_usable(data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sums of numbers near the largest
        folder = RunFolder(Path(name) / "run")
        config, budget = ppga.preset("smoke", "sphere")
        folder.create("sphere", config, budget, {"task": {}})
        changed = [json.loads(json.dumps(line)) for line in lines()]
        corrupt(data, data.draw(some.sampled_from(changed)))
        folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in changed))
        try:
            report.summary([read_run(folder.path)])
            json.dumps(Source(folder.path).trajectory(), allow_nan=False)
        except InputError:
            pass


# Requests of the viewer's page.


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Viewer:
    folder = tmp_path_factory.mktemp("fuzz")
    archive().save(folder / "archive.safetensors")
    return Viewer(folder, "127.0.0.1", 9100)


@fuzz
@given(
    action=some.sampled_from(["play", "pin", "remove", "set_clock"]),
    request=some.dictionaries(
        some.sampled_from(["slot", "cell", "start", "which", "speed", "time", "playing", "follow", "other"]),
        JSON,
    ),
)
def test_arbitrary_requests_get_plain_answers(viewer: Viewer, action: str, request: dict[str, Any]) -> None:
    try:
        answer = getattr(viewer, action)(request)
    except InputError:
        return
    json.dumps(answer)
