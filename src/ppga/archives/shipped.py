"""Archives that come with the package: `src/ppga/pretrained/TASK.safetensors`, known as `pretrained:TASK`."""

import os
from importlib.resources import files
from pathlib import Path

from ppga.errors import InputError, choose

FOLDER = Path(str(files("ppga"))) / "pretrained"
PREFIX = "pretrained:"


def names() -> tuple[str, ...]:
    """Of all that there are."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.safetensors")))


def shipped(path: str | os.PathLike[str]) -> Path | None:
    """The file that `pretrained:NAME` stands for; None if this is the path of something else."""
    given = os.fspath(path)
    if not given.startswith(PREFIX):
        return None
    known = names()
    if not known:
        raise InputError(f"{given}: this ppga has no pretrained archives.")
    return FOLDER / f"{choose('pretrained archive', given.removeprefix(PREFIX), known)}.safetensors"


def beside(file: Path) -> Path:
    """Where to write what belongs to an archive: its folder; for those of the package, the one we are in."""
    return Path() if file.parent.resolve() == FOLDER.resolve() else file.parent
