"""Long runs: memory, open files and the number of compiled programs do not grow."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

import ppga
from ppga import Budget, Iteration, machine
from ppga.search import LegConfig

from helpers.runs import SPHERE
from helpers.settings import settings, slider

COMPILED = "/jax/core/compile/backend_compile_duration"
_COMPILED: Counter[str] = Counter()
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: _COMPILED.update([event]))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("iterations", [800, pytest.param(2000, marks=pytest.mark.long)])
def test_memory_and_open_files_do_not_grow(iterations: int, tmp_path: Path) -> None:
    measured: dict[int, tuple[int, int, int]] = {}

    def measure(iteration: Iteration) -> None:
        number = iteration.record["iteration"]
        if number in (iterations // 4, iterations):
            measured[number] = _COMPILED[COMPILED], open_files(), machine.used_memory()

    legs = LegConfig(iterations=50, first_iterations=0, elite="random")
    config = SPHERE.replace(
        **{"strategy.sigma0": 2.0, "archive.shape": (10, 10), "legs": legs},
        log=ppga.LoggingConfig(checkpoint_seconds=0.2),
    )
    ppga.train(
        "sphere", config, budget=Budget(iterations=iterations), output=tmp_path / "run", callbacks=[measure]
    )
    compiled, files, memory = zip(*measured.values(), strict=True)
    assert compiled[0] > 0
    assert compiled[0] == compiled[1], "nothing is compiled again"
    assert files[0] == files[1]
    assert memory[1] - memory[0] < 8 * 2**20, "lines of metrics are not kept in memory"


@pytest.mark.parametrize(("algorithm", "changes"), [("ppga", {"legs.iterations": 2}), ("pga-me", {})])
def test_learning_compiles_nothing_after_the_first_iterations(
    algorithm: str, changes: dict[str, Any]
) -> None:
    counts: list[int] = []

    def count(iteration: Iteration) -> None:  # noqa: ARG001
        counts.append(_COMPILED[COMPILED])

    config = settings(algorithm, **changes, **{"confirm.recheck": 2})
    ppga.train(slider(), config, budget=Budget(iterations=30), callbacks=[count])
    assert counts[0] > 0
    assert counts[9] == counts[-1], "with restarts, confirmation and re-evaluation"
