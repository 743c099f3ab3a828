"""The command line."""

import io
import sys
import warnings

import tyro

from ppga.cli.archives import adapt, compare, evaluate, export, report, view
from ppga.cli.lists import algorithms, tasks
from ppga.cli.measuring import bench, doctor
from ppga.cli.output import unfailing_output
from ppga.cli.runs import demo, reproduce, study, task_first, train_command
from ppga.errors import InputError, StorageWarning, one_line
from ppga.version import __version__


def main() -> None:
    """Run the command line; a user's mistake ends in one plain message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    warnings.formatwarning = _format_warning
    with unfailing_output():
        _command()


def _command() -> None:
    try:
        words = task_first(sys.argv[1:])
        if words == ["--version"]:
            print(f"ppga {__version__}")
            return
        tyro.extras.subcommand_cli_from_dict(
            {
                "report": report,
                "compare": compare,
                "train": train_command(words),
                "evaluate": evaluate,
                "view": view,
                "export": export,
                "adapt": adapt,
                "study": study,
                "reproduce": reproduce,
                "demo": demo,
                "tasks": tasks,
                "algorithms": algorithms,
                "doctor": doctor,
                "bench": bench,
            },
            prog="ppga",
            args=words,
            description="Quality-diversity reinforcement learning: archives of good, different policies.\n\n"
            "ppga --version tells which version this is.",
        )
    except InputError as error:
        print(f"ppga: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(
            "ppga: stopped at once; ppga train --resume RUN goes on from its last checkpoint", file=sys.stderr
        )
        sys.exit(130)


_USUAL_FORMAT = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One plain line for ppga's own warnings; where in the code they come from helps no user."""
    if issubclass(category, StorageWarning):
        return f"ppga: warning: {message}\n"
    return _USUAL_FORMAT(message, category, filename, lineno, line)
