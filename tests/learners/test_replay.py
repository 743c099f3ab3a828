"""The replay buffer, against a list of limited length."""

import io
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import ppga
from ppga import InputError, machine
from ppga.config import differences
from ppga.learners.replay import NAME, Replay
from ppga.runs.build import make_algorithm
from ppga.runs.display import Lines
from ppga.runs.folder import RunFolder


def rows(first: int, n: int) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.float32)[:, None] * [1.0, -1.0]


def contents(replay: Replay) -> set[float]:
    """All rows that can be sampled."""
    drawn = replay.sample(np.random.default_rng(0), (4000,))
    assert (drawn[:, 0] == -drawn[:, 1]).all(), "rows are complete"
    return set(drawn[:, 0].tolist())


@pytest.mark.parametrize("in_a_file", [False, True])
@given(bursts=st.lists(st.integers(0, 13), min_size=1, max_size=12))
def test_the_buffer_holds_the_last_rows(
    bursts: list[int], in_a_file: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    replay, slow, written = Replay(10, (2,), 13), deque[float](maxlen=10), 0
    replay.open(tmp_path_factory.mktemp("ring") if in_a_file else None)
    for burst in bursts:
        replay.add(rows(written, burst))
        slow.extend(range(written, written + burst))
        written += burst
        assert len(replay) == len(slow)
        if slow:
            assert contents(replay) == set(slow)


def test_samples_are_uniform() -> None:
    replay = Replay(5, (2,), 5)
    replay.open(None)
    replay.add(rows(0, 13))
    drawn = replay.sample(np.random.default_rng(1), (200, 100))[..., 0]
    assert drawn.shape == (200, 100)
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 5
    np.testing.assert_allclose(counts, 4000, rtol=0.1)


@pytest.mark.parametrize("checkpoint", [1, 2, 3])
def test_the_last_three_checkpoints_can_be_restored(checkpoint: int, tmp_path: Path) -> None:
    """After a crash in the middle of an iteration, with checkpoints as late as they may be."""
    replay = Replay(100, (2,), 30)
    replay.open(tmp_path)
    saved: list[tuple[np.ndarray, set[float]]] = []
    written = 0
    for _ in range(40):
        replay.add(rows(written, 30))
        written += 30
        if replay.due:
            saved.append((replay.state(), contents(replay)))
    replay.add(rows(written, 29))  # an iteration that did not finish
    state, expected = saved[-checkpoint]
    restored = Replay(100, (2,), 30)
    restored.open(tmp_path)
    restored.load_state(state)
    assert contents(restored) == expected
    restored.add(rows(int(state), 7))
    assert max(contents(restored)) == int(state) + 6
    with pytest.raises(InputError, match="does not hold the experience"):
        restored.load_state(saved[-8][0])


def test_a_missing_or_truncated_file_is_rejected(tmp_path: Path) -> None:
    replay = Replay(50, (2,), 10)
    replay.open(tmp_path)
    replay.add(rows(0, 40))
    state = replay.state()
    (tmp_path / NAME).unlink()
    recreated = Replay(50, (2,), 10)
    recreated.open(tmp_path)
    with pytest.raises(InputError, match="does not hold the experience"):
        recreated.load_state(state)
    (tmp_path / NAME).write_bytes(b"short")
    with pytest.raises(InputError, match="5 bytes, expected"):
        Replay(50, (2,), 10).open(tmp_path)
    in_memory = Replay(50, (2,), 10)
    in_memory.open(None)
    with pytest.raises(InputError, match="in a run's folder only"):
        in_memory.load_state(state)


def test_a_buffer_that_does_not_fit_is_rejected_with_the_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay(1000, (16,), 10)
    replay.check(tmp_path)
    monkeypatch.setattr(machine, "free_memory", lambda: replay.bytes // 2)
    with pytest.raises(InputError, match=r"At most 4\d\d would fit") as error:
        replay.check(tmp_path)
    fits = Replay(int(str(error.value).split("At most ")[1].split()[0]), (16,), 10)
    fits.check(tmp_path)
    huge = Replay(10**14, (16,), 10)
    monkeypatch.setattr(machine, "free_memory", lambda: 10**18)
    with pytest.raises(InputError, match=r"free \(disk"):
        huge.check(tmp_path / "folder" / "to" / "create")
    assert list(tmp_path.iterdir()) == []


class Stopping(Lines):
    """Ends a run when the files of its start have been written."""

    def begin(self, title: str, share: float) -> None:
        super().begin(title, share)
        raise KeyboardInterrupt


@pytest.mark.parametrize(("algorithm", "part"), [("pga-me", "td3"), ("pbt-me-sac", "sac")])
def test_the_laptop_preset_shrinks_its_buffer_and_the_paper_preset_does_not(
    algorithm: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, before anything is written."""
    config, budget = ppga.preset("laptop", "hopper", algorithm)
    default = getattr(config, part).buffer_size
    problem: Any = make_algorithm("hopper", config).problem
    free = int(0.6 * problem.replay.bytes)
    monkeypatch.setattr(machine, "free_memory", lambda: free)
    output = io.StringIO()
    display = Stopping(Console(file=output, width=200))
    with pytest.raises(KeyboardInterrupt):
        ppga.train("hopper", config, budget=budget, output=tmp_path / "run", display=display)
    _, written, _ = RunFolder(tmp_path / "run").read()
    smaller = getattr(written, part).buffer_size
    # there are spare rows for iterations in which all candidates are confirmed
    assert 0.2 * default < smaller < 0.6 * default
    assert f"{part}.buffer_size is {smaller:,}, not {default:,}" in output.getvalue()
    assert (tmp_path / "run" / NAME).stat().st_size <= 0.9 * free
    assert [name for name, *_ in differences(config, written)] == [f"{part}.buffer_size"]

    config, budget = ppga.preset("paper", "hopper", algorithm)
    with pytest.raises(InputError, match=r"At most [\d,]+ would fit"):
        ppga.train("hopper", config, budget=budget, output=tmp_path / "paper")


def test_an_empty_buffer_cannot_be_sampled() -> None:
    replay = Replay(5, (2,), 5)
    replay.open(None)
    with pytest.raises(InputError, match="empty"):
        replay.sample(np.random.default_rng(0), (1,))


def test_memory_limits_of_control_groups_count(tmp_path: Path) -> None:
    own, inside = tmp_path / "own", tmp_path / "groups/jobs/one"
    inside.mkdir(parents=True)
    own.write_text("1:name=systemd:/elsewhere\n0::/jobs/one\n")
    limits = {inside: "max", inside.parent: "1000", tmp_path / "groups": "5000", tmp_path: "10"}
    for group, limit in limits.items():
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("700\n")
        (group / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    assert machine._free_in_groups(tmp_path / "groups", own) == [400, 4400]
    assert machine._free_in_groups(tmp_path / "groups", tmp_path / "nothing") == []


def test_free_memory_is_at_most_all_memory() -> None:
    total = machine.describe()["memory_gib"] * 2**30
    assert 0 < machine.free_memory() <= 1.01 * total
