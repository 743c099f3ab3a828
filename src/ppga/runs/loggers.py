"""Where the metrics of a run go besides its own file."""

import hashlib
import os
import socket
import struct
import time
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
    """An event file for TensorBoard; an error is raised where it occurs.

    tensorboardX's `SummaryWriter` has a thread that dies of an error; its queue then blocks the run.

    Args:
        folder: where it goes.
        iteration: the last one that counts; later ones of a run that was cut short are hidden.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self.file = folder / name
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if iteration:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=iteration + 1, session_log=start))

    def log(self, record: dict[str, Any]) -> None:
        """One point on every curve."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record).items()]
        self._write(Event(wall_time=time.time(), step=record["iteration"], summary=Summary(value=values)))

    def close(self) -> None:
        """Nothing: the file is open only while something is written."""

    def _write(self, event: Any) -> None:
        """Append a record: its length and its content, each followed by a checksum."""
        from tensorboardX.record_writer import masked_crc32c

        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        with self.file.open("ab") as file:
            for part in (length, content):
                file.write(part + struct.pack("<I", masked_crc32c(part)))


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
