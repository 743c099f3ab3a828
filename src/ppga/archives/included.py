"""Archives that are included in the package: `src/ppga/pretrained/TASK.safetensors`, as `pretrained:TASK`."""

import os
from importlib.resources import files
from pathlib import Path

from ppga.errors import InputError, check_choice

FOLDER = Path(str(files("ppga"))) / "pretrained"
PREFIX = "pretrained:"


def names() -> tuple[str, ...]:
    """Names of all included archives."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.safetensors")))


def find_included(path: str | os.PathLike[str]) -> Path | None:
    """The file that `pretrained:NAME` stands for; None if the path does not begin with `pretrained:`."""
    text = os.fspath(path)
    if not text.startswith(PREFIX):
        return None
    known = names()
    if not known:
        raise InputError(f"{text}: this ppga has no pretrained archives.")
    return FOLDER / f"{check_choice('pretrained archive', text.removeprefix(PREFIX), known)}.safetensors"


def output_folder(file: Path) -> Path:
    """Folder for files that belong to an archive: its own; for included archives, the working directory."""
    return Path() if file.parent.resolve() == FOLDER.resolve() else file.parent
