"""Commands of `ppga`, run in the test's process, and an environment for those in processes of their own."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ppga.cli import main

import benchmarks.__main__
from helpers.tasks import registry_restored

HELPERS = Path(__file__).parent
"""Folder of files with tasks, such as slider.py."""


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: str, folder: Path | None = None) -> Done:
    """Run `ppga WORDS` in this process, which has imported everything already.

    The command knows the tasks that a new process would know, and registers none for later.

    Args:
        *words: the words after `ppga`.
        folder: working directory; the current one by default.
    """
    return run_main(main, "ppga", *words, folder=folder)


def benchmark(*words: str, folder: Path | None = None) -> Done:
    """Run `python -m benchmarks WORDS` in this process; see `command`."""
    return run_main(benchmarks.__main__.main, "benchmarks", *words, folder=folder)


def run_main(
    main: Callable[[], None], program: str, *words: str, folder: Path | None = None, columns: int = 120
) -> Done:
    """Run the main function of a program on a terminal of that width; see `command`."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        registry_restored(),
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", [program, *words])
        patch.setenv("COLUMNS", str(columns))
        if folder is not None:
            patch.chdir(folder)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, output.getvalue(), errors.getvalue())


def environment(**variables: str) -> dict[str, str]:
    """Environment of a process that runs `python -m helpers.NAME`, or loads a task from a file in `helpers`.

    Args:
        **variables: further variables.
    """
    path = os.pathsep.join([str(HELPERS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path} | variables
