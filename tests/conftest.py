"""Tasks are made once for the whole run; tests share what XLA has compiled where they can."""

import atexit
import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before anything is imported, and for processes that tests begin, too: what they compute is compared to the
# bit. Tests mostly wait for compilers, and what these compile runs but a moment. Numba (pyribs' CMA-ES) is
# left out. Without most optimisations, and without the newer of its two ways to write loops, XLA takes a
# fraction of the time; it dies of flags that it does not know.
os.environ["NUMBA_DISABLE_JIT"] = "1"
QUICK = "--xla_cpu_use_fusion_emitters=false"
if "PPGA_OPTIMISED" not in os.environ:
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    given = os.environ.get("XLA_FLAGS", "")
    if version("jax").startswith("0.10.") and QUICK not in given:
        os.environ["XLA_FLAGS"] = f"{given} {QUICK}".strip()

# What one process has compiled, others find on the disk; only programs that call MuJoCo are compiled by
# everyone. To keep it for the next time, name a folder.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="ppga-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# What a script begins in the background ignores Ctrl-C, and so do its children; a terminal's do not.
signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import numpy as np
import pytest

import ppga
from ppga.cli import main
from ppga.runs.folder import read_lines
from ppga.tasks import TASKS, Task, robot, sample

# no deadlines: how long an example takes says more about the machine than about the code
hypothesis.settings.register_profile("ppga", deadline=None)
hypothesis.settings.load_profile("ppga")

LONGEST = ("algorithms", "viewer", "cluster", "devices", "study", "other_simulators", "cli", "faults")
"""Files of tests that are begun first, so that no core is left alone with one of them in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: str, folder: Path | None = None) -> Done:
    """What `ppga WORDS` does, in this process, which has imported everything already.

    It knows no more tasks than a new one would, and leaves none behind.
    """
    known, output, errors, code = dict(TASKS), io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", ["ppga", *words])
        patch.setenv("COLUMNS", "120")
        if folder is not None:
            patch.chdir(folder)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            TASKS.clear()
            TASKS.update(known)
            sample.cache_clear()
    return Done(code, output.getvalue(), errors.getvalue())


TIMES = ("wall_time", "steps_per_second", "times")
NAMES = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid-full")


@cache
def shared_task(name: str, **options: Any) -> Task:
    return robot(name, **options)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lines(run: Path) -> list[dict[str, Any]]:
    """The metrics without the times."""
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in read_lines(run / "metrics.jsonl")
    ]


def same_runs(a: Path, b: Path) -> None:
    """Same archive, bit by bit, and same metrics but for times."""
    for name, values in ppga.load_archive(a).elites.items():
        np.testing.assert_array_equal(ppga.load_archive(b).elites[name], values, err_msg=name)
    assert json.dumps(lines(a)) == json.dumps(lines(b))
    assert (a / "cells.jsonl").read_text() == (b / "cells.jsonl").read_text()
