"""Writes the files of a run during the run: metrics, snapshots, checkpoints, archive, heatmap."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ppga.algorithms import Algorithm, AlgorithmConfig, config_to_json
from ppga.archives import heatmaps
from ppga.config import Budget, to_json
from ppga.errors import error_text
from ppga.runs import checkpoints
from ppga.runs.folder import RunFolder
from ppga.runs.loggers import Logger, TensorBoard, WandB
from ppga.runs.results import objectives_only, to_archive
from ppga.storage import sync

MAX_WRITING_SHARE = 1 / 50
"""Share of the run's time that writing checkpoints may take."""
HEATMAP_SECONDS = 60.0
"""Least number of seconds between two heatmaps."""


class Writer:
    """Writes the state and the metrics of a run.

    Args:
        folder: the run's folder.
        task: name of the task.
        config: settings of the run.
        budget: budget of the run.
        algorithm: the algorithm whose state is written.
        say: shows a message about a logger or a heatmap that failed; the run continues without it.
    """

    def __init__(
        self,
        folder: RunFolder,
        task: str,
        config: AlgorithmConfig,
        budget: Budget,
        algorithm: Algorithm,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.algorithm, self.config, self.say = folder, algorithm, config, say
        self.loggers: list[Logger] = []
        if config.log.tensorboard:
            try:
                self.loggers.append(TensorBoard(folder.tensorboard, algorithm.iteration))
            except OSError as error:
                self._report_logger("TensorBoard", error)
        if config.log.wandb:
            settings = {"task": task, "budget": to_json(budget), **config_to_json(config)}
            self.loggers.append(WandB(config.log.wandb, folder.path, folder.begun(), settings))
        self.checkpoint_time = self.heatmap_time = time.monotonic()
        self.checkpoint_interval = config.log.checkpoint_seconds
        self.heatmap_failed = False

    def checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        elapsed = time.monotonic() - self.checkpoint_time
        return elapsed >= self.checkpoint_interval or self.algorithm.problem.checkpoint_due

    def write(self, record: dict[str, Any], seconds: float, last: bool, checkpoint: bool) -> None:
        """Write an iteration's metrics, and a checkpoint if it is the last one or if asked to.

        Args:
            record: metrics of the iteration.
            seconds: wall time of the run so far.
            last: whether the run ends here.
            checkpoint: whether to write a checkpoint.
        """
        self._append(self.folder.metrics, record)
        if record["iteration"] % self.config.log.snapshot_iterations == 0:
            self._append(self.folder.cells, self._snapshot())
        self._call_loggers(lambda logger: logger.log(record))
        now = time.monotonic()
        if last or checkpoint:
            self.save(seconds)
            duration = time.monotonic() - now
            self.checkpoint_time = time.monotonic()
            least = self.config.log.checkpoint_seconds
            self.checkpoint_interval = max(least, duration / MAX_WRITING_SHARE) if least else 0.0
        if last or now - self.heatmap_time >= HEATMAP_SECONDS:
            self._draw()
            self.heatmap_time = now

    def close(self) -> None:
        """Close the loggers."""
        self._call_loggers(lambda logger: logger.close())

    def save(self, seconds: float) -> None:
        """Write the archive and a checkpoint, after the lines of the logs that belong to them."""
        for file in (self.folder.metrics, self.folder.cells):
            if file.exists():
                sync(file)
        sync(self.folder.path)  # directory entries
        to_archive(self.algorithm).save(self.folder.archive)
        state = checkpoints.Checkpoint(self.algorithm.iteration, seconds, self.algorithm.state())
        checkpoints.save(self.folder.checkpoints, state)

    def _draw(self) -> None:
        """Draw the heatmap; only the first failure is reported."""
        try:
            heatmaps.png(objectives_only(self.algorithm), self.folder.heatmap)
        except Exception as error:  # any error of the drawing library, or of the disk
            if not self.heatmap_failed:
                self.say(f"warning: {self.folder.heatmap.name} could not be drawn: {error_text(error)}")
            self.heatmap_failed = True

    def _call_loggers(self, call: Callable[[Logger], None]) -> None:
        """Call every logger; one that fails is disabled."""
        for logger in tuple(self.loggers):
            try:
                call(logger)
            except OSError as error:
                self.loggers.remove(logger)
                self._report_logger(type(logger).__name__, error)

    def _report_logger(self, name: str, error: OSError) -> None:
        reason = error.strerror or error
        self.say(f"warning: {name} is switched off, the run continues without it: {reason}")

    def _snapshot(self) -> dict[str, Any]:
        elites = self.algorithm.elites
        return {
            "iteration": self.algorithm.iteration,
            "cells": elites.occupied.tolist(),
            "objectives": [round(float(value), 3) for value in elites.objectives],
        }

    def _append(self, file: Path, content: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(_with_nulls(content)) + "\n")


def _with_nulls(value: Any) -> Any:
    """Nested values with null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
