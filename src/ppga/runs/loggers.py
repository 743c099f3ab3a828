"""Loggers that receive the metrics of a run besides its own file: TensorBoard, Weights & Biases."""

import hashlib
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, Protocol

from ppga.errors import import_extra


class Logger(Protocol):
    """Receives the metrics of each iteration."""

    def log(self, record: dict[str, Any]) -> None:
        """Write the metrics of an iteration."""

    def close(self) -> None:
        """Finish writing at the end of the run."""


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record by flat names, such as `strategy_mean/0` and `times/total`."""
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
    """Writes an event file for TensorBoard, and raises errors where they occur.

    tensorboardX's `SummaryWriter` is not used, because its thread dies silently of a disk error and then
    blocks the run.

    Args:
        folder: folder of the file.
        iteration: last iteration before a resume, 0 for none; TensorBoard hides what was written after it.
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
        """Add a point to every curve."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record).items()]
        self._write(Event(wall_time=time.time(), step=record["iteration"], summary=Summary(value=values)))

    def close(self) -> None:
        """Do nothing: the file is open only while it is written."""

    def _write(self, event: Any) -> None:
        """Append a record: its length and its content, each followed by a checksum."""
        from tensorboardX.record_writer import masked_crc32c

        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        with self.file.open("ab") as file:
            for part in (length, content):
                file.write(part + struct.pack("<I", masked_crc32c(part)))


class WandB:
    """Logs to Weights & Biases.

    Args:
        project: name of the project.
        folder: folder of the run.
        begun: time at which the run was started; with the folder's name it identifies a resumed run.
        config: settings of the run.
    """

    def __init__(self, project: str, folder: Path, begun: str, config: dict[str, Any]) -> None:
        wandb = import_extra("wandb", "wandb")
        identity = hashlib.sha256(f"{folder.name} {begun}".encode()).hexdigest()[:16]
        self.run = wandb.init(
            project=project, name=folder.name, id=identity, dir=str(folder), config=config, resume="allow"
        )

    def log(self, record: dict[str, Any]) -> None:
        """Add a point to every curve."""
        self.run.log(scalars(record), step=record["iteration"])

    def close(self) -> None:
        """Finish the run at Weights & Biases."""
        self.run.finish()
