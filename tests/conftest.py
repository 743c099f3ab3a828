"""Tasks are made once for the whole run; tests share what XLA has compiled where they can."""

import atexit
import os
import shutil
import signal
import tempfile
from importlib.metadata import version

# Before anything is imported, and for processes that tests begin, too: what they compute is compared to the
# bit. Tests mostly wait for compilers, and what these compile runs but a moment. Numba (pyribs' CMA-ES) is
# left out. Without most optimizations, and without the newer of its two ways to write loops, XLA takes a
# fraction of the time; it dies of flags that it does not know.
os.environ["NUMBA_DISABLE_JIT"] = "1"
QUICK = "--xla_cpu_use_fusion_emitters=false"
if "PPGA_OPTIMIZED" not in os.environ:
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

# pytest-xdist sets the size of a terminal, and a console keeps what it finds when it is made.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)

# What a script begins in the background ignores Ctrl-C, and so do its children; a terminal's do not.
signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

from helpers.tasks import NAMES

# no deadlines: how long an example takes says more about the machine than about the code
hypothesis.settings.register_profile("ppga", deadline=None)
hypothesis.settings.load_profile("ppga")

LONGEST = (
    "algorithms", "cluster", "viewer", "worker_pool", "slurm", "commands", "stopping", "devices", "faults",
    "study", "nonfinite", "brax",
)  # fmt: skip
"""Files of tests that are begun first, so that no core is left alone with one of them in the end.

In this order, no two of them use Ray at the same time.
"""
SLOW = (
    "algorithms", "benchmarks", "brax", "cluster", "commands", "devices", "faults", "long_runs",
    "mjx_engine", "nonfinite", "optional_output", "race", "random", "reading", "report", "reproduce",
    "resume", "slurm", "stopping", "study", "torn_logs", "untrusted_archives", "viewer", "worker_pool",
)  # fmt: skip
"""Files of tests that `make quick` leaves out: they start processes or browsers, or make many runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for item in items:
        if item.path.stem.removeprefix("test_") in SLOW:
            item.add_marker("slow")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
