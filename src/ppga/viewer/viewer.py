"""Answers to the page's requests: the archive's cells, the elites on the lanes, the clock, and downloads."""

import io
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ppga.analysis.corrected import task_of
from ppga.archives import Archive
from ppga.archives.files import ARCHIVE_FILE, ARCHIVED, CORRECTED, WHICH
from ppga.errors import InputError, error_text
from ppga.policies.network import Network
from ppga.rendering import Renderer
from ppga.storage import NumpyArray
from ppga.viewer.player import Episode, Player
from ppga.viewer.source import Source, cells_of
from ppga.viewer.stage import SLOTS, Stage, check_slot

ANIMATION_SECONDS, FRAME_SECONDS, MAX_FRAME_SECONDS = 4.0, 0.04, 0.08
"""Simulated seconds of a GIF, and between two of its frames: preferred and at most."""
ANIMATION_SIZE = (480, 320)
"""Width and height of a GIF in pixels."""
NO_CLOCK = {"time": 0.0, "length": 0.0, "playing": False, "speed": 1.0, "follow": True}
"""The clock's state while there is no stage."""


class Viewer:
    """A run, a player and a stage; each request of the page is a method.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
        host: host name or address to listen on.
        port: port of the page; the stage uses the next free one.

    Attributes:
        problem: why there is no stage; None if there is no problem.
    """

    def __init__(self, path: Path, host: str, port: int) -> None:
        self.source, self.host = Source(path), host
        self.player: Player | None = None
        self.stage: Stage | None = None
        self.problem: str | None = None
        self._making, self._playing = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        self._stage_port = port + 1

    def ready(self) -> None:
        """Create player and stage if there is an archive; compile by playing its best elite."""
        with self._making:
            archive = self.source.snapshot().archive
            if self.stage is not None or archive is None or not len(archive):
                return
            task = task_of(archive)
            model = task.drawable()
            self.player = Player(task, Network.of(archive.description["network"]))
            first = self.player.play(archive, archive.best(), which=ARCHIVED)
            stage = Stage(model, task.control_dt, self.host, self._stage_port)
            stage.show(0, first)
            self.stage = stage

    def prepare(self) -> None:
        """Wait for an archive and create the stage; the page shows the heatmap in the meantime."""
        last_version = None
        while self.stage is None and not self._closed.wait(0.2):
            version = self.source.snapshot().version
            if self.problem is not None and version == last_version:
                continue  # it would fail again
            last_version = version
            try:
                self.ready()
                self.problem = None
            except Exception as error:  # the page shows every error
                self.problem = error_text(error)

    def close(self) -> None:
        """Stop preparing, and close the stage."""
        self._closed.set()
        with self._making:
            if self.stage is not None:
                self.stage.stop()

    # Requests.

    def about(self) -> dict[str, Any]:
        """Properties of the run and the stage, and the episodes on the lanes."""
        archive = self.source.snapshot().archive
        description = {} if archive is None else archive.description
        return {
            "name": self.source.name,
            "task": description.get("task", {}).get("name"),
            "algorithm": description.get("algorithm"),
            "dt": description.get("task", {}).get("control_dt"),
            "stage_port": self.stage.port if self.stage else None,
            "problem": self.problem,
            "shown": [self._shown(slot) for slot in range(SLOTS)],
        }

    def cells(self, which: str) -> dict[str, Any]:
        """The cells of an archive, or why it cannot be read.

        Args:
            which: archived or corrected.
        """
        snapshot = self.source.snapshot(_check_which(which))
        content = {} if snapshot.archive is None else cells_of(snapshot.archive)
        return {"version": snapshot.version, "problem": snapshot.problem, **content}

    def play(self, request: dict[str, Any]) -> dict[str, Any]:
        """Play an elite and show it on a lane.

        Args:
            request: slot; cell, or none to play the elite on this lane again; start; which.
        """
        slot = check_slot(request.get("slot"))
        cell, start = request.get("cell"), request.get("start", 0)
        if not isinstance(cell, int | None) or not isinstance(start, int) or not 0 <= start < 2**31:
            raise InputError(f"cell and start must be integers, got {cell!r} and {start!r}.")
        self.ready()
        with self._playing:  # one request at a time, in order
            if cell is None:
                previous, _ = self._on_lane(slot)
                archive, which, cell = previous.archive, previous.which, previous.cell
            else:
                which = _check_which(request.get("which", ARCHIVED))
                archive = self._archive(which)
            assert self.player is not None
            assert self.stage is not None
            begin = time.perf_counter()
            episode = self.player.play(archive, cell, start, which)
            self.stage.show(slot, episode)
        return {**self._describe(episode), "seconds": time.perf_counter() - begin}

    def pin(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Copy the episode on the first lane to the second one."""
        with self._playing:
            episode, stage = self._on_lane(0)
            stage.show(1, episode)
        return self._describe(episode)

    def remove(self, request: dict[str, Any]) -> dict[str, Any]:
        """Remove the episode on a lane.

        Args:
            request: slot.
        """
        slot = check_slot(request.get("slot"))
        with self._playing:
            if self.stage is not None:
                self.stage.show(slot, None)
        return {}

    def set_clock(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the clock, and return the status.

        Args:
            request: any of playing, speed, time and follow.
        """
        if self.stage is None:
            return {}
        numbers: dict[str, float] = {}
        for name, low, high in (("speed", 0.05, 4.0), ("time", 0.0, 1e6)):
            value = request.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}.")
                numbers[name] = float(value)
        playing, follow = request.get("playing"), request.get("follow")
        self.stage.clock.set(
            None if playing is None else bool(playing),
            numbers.get("speed"),
            numbers.get("time"),
            follow=None if follow is None else bool(follow),
        )
        return self.status()

    def status(self) -> dict[str, Any]:
        """Everything that changes without a request: clock, versions of the archives, port of the stage."""
        return {
            **(self.stage.clock.state() if self.stage else NO_CLOCK),
            "versions": {which: self.source.snapshot(which).version for which in WHICH},
            "stage_port": self.stage.port if self.stage else None,
            "problem": self.problem,
        }

    # Downloads.

    def policy(self, slot: int) -> bytes:
        """The file of an archive with the elite on a lane alone."""
        episode, _ = self._on_lane(slot)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / ARCHIVE_FILE
            episode.archive.save(file)
            return file.read_bytes()

    def rollout(self, slot: int) -> bytes:
        """The episode on a lane as CSV."""
        episode, stage = self._on_lane(slot)
        assert self.player is not None
        return episode.to_csv(stage.dt, self.player.task.measure_names).encode()

    def animation(self, slot: int) -> bytes:
        """ANIMATION_SECONDS of the episode on a lane as a GIF, from the current time on."""
        episode, stage = self._on_lane(slot)
        count, (every, duration) = int(ANIMATION_SECONDS / stage.dt), frame_interval(stage.dt)
        first = min(int(stage.clock.time / stage.dt), max(0, len(episode) - count))
        steps = range(first, min(len(episode), first + count), every)
        with Renderer(stage.model, *ANIMATION_SIZE) as renderer:
            frames = [Image.fromarray(renderer.draw(episode.qpos[step])) for step in steps]
        content = io.BytesIO()
        frames[0].save(content, "GIF", save_all=True, append_images=frames[1:], loop=0, duration=duration)
        return content.getvalue()

    def _archive(self, which: str) -> Archive:
        snapshot = self.source.snapshot(_check_which(which))
        if snapshot.archive is None:
            raise InputError(snapshot.problem or f"there is no {which} archive.")
        return snapshot.archive

    def _on_lane(self, slot: int) -> tuple[Episode, Stage]:
        """The episode on a lane and the stage; raises an InputError if there is none."""
        episode = self.stage.episode(check_slot(slot)) if self.stage else None
        if episode is None or self.stage is None:
            raise InputError(f"there is no robot at position {slot}.")
        return episode, self.stage

    def _shown(self, slot: int) -> dict[str, Any] | None:
        """The episode on a lane as JSON values; None if the lane is empty."""
        episode = self.stage.episode(slot) if self.stage else None
        return None if episode is None else self._describe(episode)

    def _describe(self, episode: Episode) -> dict[str, Any]:
        """An episode as JSON values."""
        known = episode.archive.survivor_coverage is not None
        statistics = {
            name: float(episode.archive.elites[name][0]) if known else None for name in ("length", "survival")
        }
        return {
            "which": episode.which,
            "measures": list(episode.archive.measure_names),
            "cell": episode.cell,
            "start": episode.start,
            "steps": len(episode),
            "archived": {
                "objective": episode.archived[0],
                "measures": episode.archived[1],
                **statistics,
            },
            "episode": {"objective": episode.objective, "measures": episode.measures},
            "levels": levels_of(episode.proxies),
        }


def frame_interval(dt: float) -> tuple[int, int]:
    """Control steps between two frames of a GIF, and the duration of a frame in milliseconds.

    GIFs count time in hundredths of a second. Chosen is the number of steps that is nearest to a multiple of
    that, and among equal ones the nearest to FRAME_SECONDS.

    Args:
        dt: seconds of a control step.
    """

    def error(every: int) -> tuple[float, float]:
        hundredths = 100 * dt * every
        relative = abs(hundredths / max(2, round(hundredths)) - 1)  # browsers play shorter frames slowly
        return round(relative, 6), abs(dt * every - FRAME_SECONDS)

    every = min(range(1, max(1, int(MAX_FRAME_SECONDS / dt)) + 1), key=error)
    return every, 10 * max(2, round(100 * dt * every))


def levels_of(proxies: NumpyArray) -> list[list[float]]:
    """Measure proxies (t, k) as levels (k, t) in [0, 1]: proxies other than 0 and 1 are scaled to it."""
    binary = np.isin(proxies, (0.0, 1.0)).all(axis=0)
    low, high = np.where(binary, 0.0, proxies.min(axis=0)), np.where(binary, 1.0, proxies.max(axis=0))
    return [row.tolist() for row in np.round((proxies - low) / np.maximum(high - low, 1e-9), 3).T]


def _check_which(name: Any) -> str:
    """Return the name of an archive, or raise an InputError."""
    if name not in WHICH:
        raise InputError(f"which must be {ARCHIVED} or {CORRECTED}, got {name!r}.")
    return str(name)
