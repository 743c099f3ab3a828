"""Whatever is in a file, a setting or a request, the answer is a result or one plain message.

Briefly here; `make fuzz` goes on for long (PPGA_FUZZ is the number of examples of each).
"""

import dataclasses
import json
import math
import os
import tempfile
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some

import ppga
from ppga import InputError, PPGAConfig
from ppga.algorithms import ALGORITHMS
from ppga.archives import Archive, load_archive
from ppga.runs import checkpoints
from ppga.runs.config import from_json, to_json
from ppga.runs.folder import RunFolder
from ppga.viewer.viewer import Viewer
from test_export import archive

EXAMPLES = int(os.environ.get("PPGA_FUZZ", "40"))
fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**70), 2**70) | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def spoil(data: some.DataObject, table: dict[str, Any]) -> None:
    """Put anything at all in one place of a nested table."""
    while True:
        key = data.draw(some.sampled_from(sorted(table)))
        if not isinstance(table[key], dict) or not table[key] or data.draw(some.booleans()):
            table[key] = data.draw(JSON)
            return
        table = table[key]


def content() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "archive.safetensors"
        archive().save(file)
        return file.read_bytes()


WHOLE = content()


def read(data: bytes) -> Archive | None:
    """The archive in a file with such content; None if it was refused in plain words."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "archive.safetensors"
        file.write_bytes(data)
        try:
            found = load_archive(file)
        except InputError:
            return None
        usable(found)
        return found


def usable(found: Archive) -> None:
    """Nothing that one does with an archive fails in a way of its own."""
    assert math.isfinite(found.qd_score)
    assert 0 <= found.coverage <= 1
    if len(found):
        found.nearest([0.0] * len(found.ranges))
        found.elite(found.best())


@fuzz
@given(some.data())
def test_a_damaged_archive_is_refused_or_whole(data: some.DataObject) -> None:
    bytes_ = bytearray(WHOLE)
    for _ in range(data.draw(some.integers(1, 6))):
        at = data.draw(some.integers(0, len(bytes_) - 1))
        kind = data.draw(some.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip":
            bytes_[at] ^= data.draw(some.integers(1, 255))
        elif kind == "cut":
            del bytes_[at : at + data.draw(some.integers(1, 200))]
        elif kind == "insert":
            bytes_[at:at] = data.draw(some.binary(max_size=40))
        else:
            bytes_[at:at] = bytes_[at : at + 64]
        assume(len(bytes_) > 0)
    read(bytes(bytes_))


@fuzz
@given(some.binary(max_size=400))
def test_what_never_was_an_archive_is_refused(data: bytes) -> None:
    assert read(data) is None


def parts() -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(WHOLE[:8], "little")
    return json.loads(WHOLE[8 : 8 + size]), WHOLE[8 + size :]


def joined(header: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


@fuzz
@given(some.data())
def test_a_description_that_says_anything_is_refused_or_whole(data: some.DataObject) -> None:
    header, rest = parts()
    description = json.loads(header["__metadata__"]["ppga"])
    spoil(data, description)
    header["__metadata__"]["ppga"] = json.dumps(description)
    read(joined(header, rest))


@fuzz
@given(some.data())
def test_a_header_that_says_anything_is_refused_or_whole(data: some.DataObject) -> None:
    """Among it sizes beyond all memory, names with paths in them, kinds of numbers that are none."""
    header, rest = parts()
    name = data.draw(some.sampled_from([key for key in header if key != "__metadata__"]))
    kind = data.draw(some.sampled_from(["dtype", "shape", "data_offsets", "name"]))
    if kind == "name":
        header[data.draw(some.sampled_from(["../../etc/passwd", "/root", "elites/" + "x" * 300, ""]))] = (
            header.pop(name)
        )
    elif kind == "dtype":
        header[name]["dtype"] = data.draw(some.sampled_from(["F64", "F16", "BF16", "I64", "U8", "BOOL", "X"]))
    else:
        header[name][kind] = data.draw(some.lists(some.integers(-5, 2**63), max_size=4))
    read(joined(header, rest))


def test_absurd_sizes_take_no_memory() -> None:
    header, rest = parts()
    for shape in ([2**40], [2**31, 2**31], [0, 2**62], [2**62, 0]):
        changed = json.loads(json.dumps(header))
        changed["elites/solution"]["shape"] = shape
        assert read(joined(changed, rest)) is None
    assert read((2**62).to_bytes(8, "little") + WHOLE[8:]) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("measures", np.nan, "not finite"), ("objective", np.inf, "not finite"), ("index", 10**6, "cells"),
        ("index", -1, "cells"),
    ],
)  # fmt: skip
def test_values_that_no_elite_has_are_refused(name: str, value: float, message: str, tmp_path: Path) -> None:
    made = archive()
    changed = {key: np.array(values) for key, values in made.elites.items()}
    changed[name].ravel()[0] = value
    Archive(made.description, changed).save(tmp_path / "archive.safetensors")
    with pytest.raises(InputError, match=message):
        load_archive(tmp_path)


@fuzz
@given(some.data())
def test_a_damaged_checkpoint_is_left_out(data: some.DataObject) -> None:
    """Any change of either of its files; the one before it is used, as it was."""
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
        said: list[str] = []
        found = checkpoints.newest(folder, said.append)
        assert found is not None
        if found.iteration == 2:  # the change did not matter: white space, say
            assert said == []
        else:
            assert len(said) == 1
        np.testing.assert_array_equal(found.arrays["theta"], np.full(5, found.iteration, np.float32))


# Settings.


def leaves(kind: Any, where: str = "") -> list[tuple[str, Any]]:
    """Dotted names of all settings, with their kinds."""
    hints = typing.get_type_hints(kind)
    found = []
    for item in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[item.name]):
            found += leaves(hints[item.name], f"{where}{item.name}.")
        else:
            found.append((f"{where}{item.name}", hints[item.name]))
    return found


def bad_values(kind: Any) -> list[Any]:
    """What no setting of that kind can be."""
    text = str(kind)
    values: list[Any] = [{"a": 1}, [[]]]
    if kind is bool or "str" in text or "Literal" in text:
        return [*values, 3.5]
    if "tuple" in text:
        return [*values, [-1], ["x"]]
    if "float" in text:
        return [*values, math.nan, -math.inf, "much"]
    return [*values, -1, 1.5, True, "many"]


@pytest.mark.parametrize(("name", "kind"), leaves(PPGAConfig))
def test_no_setting_takes_a_bad_value(name: str, kind: Any) -> None:
    section, _, last = name.rpartition(".")
    learner = section if section in ("ppo", "td3", "sac") else None
    users = [one for one, made in ALGORITHMS.items() if learner is None or learner in made.sections]
    for value in bad_values(kind):
        config, _ = ppga.preset("smoke", "hopper", users[0])
        table = to_json(config)
        place = table
        for part in name.split(".")[:-1]:
            place = place[part]
        place[last] = value
        with pytest.raises(InputError, match=last):
            from_json(PPGAConfig, table).check(1)


@fuzz
@given(some.data())
def test_a_config_file_that_says_anything_is_refused_or_whole(data: some.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        config, budget = ppga.preset("smoke", "hopper")
        folder.create("hopper", config, budget, {"task": {}})
        table = json.loads(folder.config.read_text())
        spoil(data, table)
        folder.config.write_text(json.dumps(table))
        try:
            _, read_config, read_budget = folder.read()
            read_budget.check()
            read_config.check(1)
        except InputError:
            pass


# What the page may be asked.


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Viewer:
    folder = tmp_path_factory.mktemp("fuzz")
    archive().save(folder / "archive.safetensors")
    return Viewer(folder, "127.0.0.1", 9100)


@fuzz
@given(
    what=some.sampled_from(["play", "pin", "leave", "set_clock"]),
    question=some.dictionaries(
        some.sampled_from(["slot", "cell", "start", "which", "speed", "time", "playing", "follow", "other"]),
        JSON,
    ),
)
def test_odd_questions_get_plain_answers(viewer: Viewer, what: str, question: dict[str, Any]) -> None:
    try:
        answer = getattr(viewer, what)(question)
    except InputError:
        return
    json.dumps(answer)
