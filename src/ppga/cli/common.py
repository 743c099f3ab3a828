"""What all commands share.

Heavy imports stay inside the commands, here and in the files beside, so that help answers at once.
"""

from typing import Annotated

import tyro
from rich.console import Console

from ppga.errors import InputError

# names of measures, runs and files, and what errors say, may look like rich's markup or emoji codes
console = Console(markup=False, emoji=False)

OwnTask = Annotated[str | None, tyro.conf.arg(metavar="FILE.py:CLASS")]


def know(task: str | None, theirs: str | None = None) -> None:
    """Make a task of the user's own known; its file is run for no other reason than being named.

    Args:
        task: FILE.py:CLASS, or a name.
        theirs: name of the task that it has to be, if that is known.
    """
    if task is None:
        return
    from ppga.tasks import find

    name = find(task)
    if theirs is not None and name != theirs:
        raise InputError(f"--task {task} is {name!r}, and the archive is of {theirs!r}.")


def check_seed(seed: int) -> None:
    """Raise an InputError unless every generator takes it."""
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must lie in [0, 2^32), got {seed}.")
