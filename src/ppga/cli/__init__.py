"""The command line: `ppga COMMAND`, with one module for each command.

A command's module is imported when the command is called, so help and errors appear at once.
"""

import importlib
import io
import sys
import warnings

from ppga.cli.output import unfailing_output
from ppga.errors import STOPPED, InputError, StorageWarning, check_choice, one_line
from ppga.version import __version__

GROUPS = {
    "Train": {
        "train": "train an archive of many good and different policies",
        "demo": "train for five minutes and show the gaits of the elites",
        "study": "compare algorithms over tasks and seeds",
        "reproduce": "run the experiments of the paper",
    },
    "Inspect": {
        "view": "show an archive in the browser: click a cell, and watch its elite walk",
        "report": "write a page about runs: curves, heatmaps, gaits, and tables over seeds",
        "evaluate": "re-evaluate all elites and write the corrected archive",
        "compare": "compare two archives cell by cell",
    },
    "Use": {
        "export": "write policies as ONNX or NumPy files, or a smaller archive",
        "adapt": "find, in a few trials, an elite that works on a damaged robot",
    },
    "Information": {
        "tasks": "list the tasks",
        "algorithms": "list the algorithms",
        "doctor": "check this machine",
    },
}
"""Commands with their summaries."""


def main() -> None:
    """Run the command line; a user's mistake ends in one plain message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    warnings.formatwarning = _format_warning
    with unfailing_output():
        try:
            run(sys.argv[1:])
        except InputError as error:
            print(f"ppga: {one_line(str(error))}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            sys.exit(130)


def run(words: list[str]) -> None:
    """Run a command.

    Args:
        words: the command and its arguments.
    """
    if not words or words[0] in ("-h", "--help"):
        print(overview())
    elif words[0] == "--version":
        print(f"ppga {__version__}")
    else:
        command = check_choice("command", words[0], [name for group in GROUPS.values() for name in group])
        importlib.import_module(f"ppga.cli.{command}").main(words[1:])


def overview() -> str:
    """The text of `ppga --help`."""
    lines = [
        "usage: ppga COMMAND [arguments]",
        "",
        "Quality-diversity reinforcement learning: archives of many good and different policies.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", title, *(f"  {name:<12}{summary}" for name, summary in commands.items())]
    return "\n".join([*lines, "", "ppga COMMAND --help shows the options; ppga --version shows the version."])


_default_format = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One plain line for ppga's own warnings; their place in the code helps no user."""
    if issubclass(category, StorageWarning):
        return f"ppga: warning: {message}\n"
    return _default_format(message, category, filename, lineno, line)
