"""Long runs: memory, open files and the number of compiled programs stay what they are."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import ppga
from ppga import machine
from ppga.runs import Budget, Iteration
from test_numbers import settings, slider

COMPILED = "/jax/core/compile/backend_compile_duration"
_COMPILED: Counter[str] = Counter()
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: _COMPILED.update([event]))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("iterations", [800, pytest.param(2000, marks=pytest.mark.long)])
def test_many_iterations_take_no_more_than_a_few(iterations: int, tmp_path: Path) -> None:
    seen: dict[int, tuple[int, int, int]] = {}

    def watch(iteration: Iteration) -> None:
        number = iteration.record["iteration"]
        if number in (iterations // 4, iterations):
            seen[number] = _COMPILED[COMPILED], open_files(), machine.used_memory()

    config = replace(
        ppga.preset("smoke", "sphere")[0],
        search=ppga.SearchConfig(branches=8, walk_updates=1, leg=50),
        archive=ppga.ArchiveConfig(shape=(10, 10)),
        keeping=ppga.KeepingConfig(checkpoint_seconds=0.2),
    )
    ppga.train(
        "sphere", config, budget=Budget(iterations=iterations), output=tmp_path / "run", callbacks=[watch]
    )
    compiled, files, memory = zip(*seen.values(), strict=True)
    assert compiled[0] > 0
    assert compiled[0] == compiled[1], "nothing is compiled again"
    assert files[0] == files[1]
    assert memory[1] - memory[0] < 8 * 2**20, "a line of metrics is not kept"


@pytest.mark.parametrize("algorithm", ["ppga", "pga-me"])
def test_learning_compiles_nothing_after_the_first_iterations(algorithm: str) -> None:
    counts: list[int] = []

    def watch(iteration: Iteration) -> None:  # noqa: ARG001
        counts.append(_COMPILED[COMPILED])

    config: Any = settings(algorithm, leg=2, recheck=2)
    ppga.train(slider(), config, budget=Budget(iterations=30), callbacks=[watch])
    assert counts[0] > 0
    assert counts[9] == counts[-1], "with restarts, confirming and judging again"
