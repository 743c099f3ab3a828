"""Where the metrics of a run go besides its own file."""

import hashlib
from pathlib import Path
from typing import Any, Protocol

from ppga.errors import import_extra


class Logger(Protocol):
    """Takes the numbers of an iteration."""

    def log(self, record: dict[str, Any]) -> None:
        """Write them down."""

    def close(self) -> None:
        """Finish."""


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record, lists spread out: `xnes_mean/0/1`."""
    flat: dict[str, float] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}/{key}" if name else key, inner)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                walk(f"{name}/{number}", inner)
        elif isinstance(value, int | float):
            flat[name] = float(value)

    walk("", record)
    return flat


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        folder: where they go.
        iteration: the last one that counts; later ones of a run that was cut short are hidden.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=iteration + 1 if iteration else None)

    def log(self, record: dict[str, Any]) -> None:
        """One point on every curve."""
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record["iteration"])

    def close(self) -> None:
        """Finish."""
        self.writer.close()


class WandB:
    """Weights & Biases.

    Args:
        project: to report to.
        folder: the run's.
        begun: when the run was begun; with the folder's name it is how a resumed run is known again.
        config: the settings.
    """

    def __init__(self, project: str, folder: Path, begun: str, config: dict[str, Any]) -> None:
        wandb = import_extra("wandb", "wandb")
        identity = hashlib.sha256(f"{folder.name} {begun}".encode()).hexdigest()[:16]
        self.run = wandb.init(
            project=project, name=folder.name, id=identity, dir=str(folder), config=config, resume="allow"
        )

    def log(self, record: dict[str, Any]) -> None:
        """One point on every curve."""
        self.run.log(scalars(record), step=record["iteration"])

    def close(self) -> None:
        """Finish."""
        self.run.finish()
