"""What is behind the page: which elite is on which lane, what it does, and what can be taken home."""

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
from ppga.archives.files import ARCHIVED, CORRECTED, WHICH
from ppga.errors import InputError, told
from ppga.networks import Network
from ppga.rendering import Renderer
from ppga.storage import NumpyArray
from ppga.viewer.player import Episode, Player
from ppga.viewer.source import Source, cells_of
from ppga.viewer.stage import Stage, check_slot

FILM_SECONDS, FILM_FRAME, FILM_LONGEST = 4.0, 0.04, 0.08
"""Simulated time of a GIF; and between two of its pictures, about, and at most."""
FILM_SIZE = (480, 320)
NO_CLOCK = {"time": 0.0, "length": 0.0, "playing": False, "speed": 1.0, "follow": True}
"""What the page hears while there is no stage."""


class Viewer:
    """A run, a player and a stage; each question of the page is a method.

    Args:
        path: a run's folder, an archive's folder, or an archive's file.
        host: to listen on.
        port: of the page; the stage takes the next free one.
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
        """Make player and stage, as soon as there is an archive to make them for; compile by playing."""
        with self._making:
            archive = self.source.snapshot().archive
            if self.stage is not None or archive is None or not len(archive):
                return
            self._check_playable(archive)
            task = task_of(archive)
            model = task.drawable()
            self.player = Player(task, Network.of(archive.description["network"]))
            first = self.player.play(archive, archive.best(), which=ARCHIVED)
            stage = Stage(model, task.control_dt, self.host, self._stage_port)
            stage.show(0, first)
            self.stage = stage

    def prepare(self) -> None:
        """Wait for an archive and be ready for it; meanwhile the page can show the map."""
        tried = None
        while self.stage is None and not self._closed.wait(0.2):
            version = self.source.snapshot().version
            if self.problem is not None and version == tried:
                continue  # it would fail again
            tried = version
            try:
                self.ready()
                self.problem = None
            except Exception as error:  # whatever it is, the page can say it
                self.problem = told(error)

    def _check_playable(self, archive: Archive) -> None:
        name = archive.description["task"]["name"]
        if archive.description.get("network") is None or name == "sphere":
            raise InputError(f"the solutions of {name} cannot be shown walking.")

    def close(self) -> None:
        """Close the stage."""
        self._closed.set()
        with self._making:
            if self.stage is not None:
                self.stage.stop()

    # What the page asks.

    def about(self) -> dict[str, Any]:
        """The run and the stage."""
        archive = self.source.snapshot().archive
        description = {} if archive is None else archive.description
        return {
            "name": self.source.name,
            "task": description.get("task", {}).get("name"),
            "algorithm": description.get("algorithm"),
            "dt": description.get("task", {}).get("control_dt"),
            "stage_port": self.stage.port if self.stage else None,
            "problem": self.problem,
            "shown": [self._told(slot) for slot in range(2)],
        }

    def cells(self, which: str) -> dict[str, Any]:
        """The archive's cells, or what is wrong with it."""
        snapshot = self.source.snapshot(_which(which))
        content = {} if snapshot.archive is None else cells_of(snapshot.archive)
        return {"version": snapshot.version, "problem": snapshot.problem, **content}

    def play(self, question: dict[str, Any]) -> dict[str, Any]:
        """Put the elite of a cell on a lane; without a cell, whoever is there begins at another start."""
        slot = check_slot(question.get("slot"))
        cell, start = question.get("cell"), question.get("start", 0)
        if not isinstance(cell, int | None) or not isinstance(start, int) or not 0 <= start < 2**31:
            raise InputError(f"a cell and a start are whole numbers, got {cell!r} and {start!r}.")
        self.ready()
        with self._playing:  # one after the other, in the order they were asked for
            if cell is None:
                before, _ = self._on(slot)
                archive, which, cell = before.alone, before.which, before.cell
            else:
                which = _which(question.get("which", ARCHIVED))
                archive = self._archive(which)
            assert self.player is not None
            assert self.stage is not None
            began = time.perf_counter()
            episode = self.player.play(archive, cell, start, which)
            self.stage.show(slot, episode)
        return {**self._describe(episode), "seconds": time.perf_counter() - began}

    def pin(self, question: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Keep whoever is on the first lane on the second."""
        with self._playing:
            episode, stage = self._on(0)
            stage.show(1, episode)
        return self._describe(episode)

    def leave(self, question: dict[str, Any]) -> dict[str, Any]:
        """Take a robot off its lane."""
        slot = check_slot(question.get("slot"))
        with self._playing:
            if self.stage is not None:
                self.stage.show(slot, None)
        return {}

    def set_clock(self, question: dict[str, Any]) -> dict[str, Any]:
        """Play, pause, another speed, another time, follow or not."""
        if self.stage is None:
            return {}
        numbers: dict[str, float] = {}
        for name, low, high in (("speed", 0.05, 4.0), ("time", 0.0, 1e6)):
            value = question.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}.")
                numbers[name] = float(value)
        playing, follow = question.get("playing"), question.get("follow")
        self.stage.clock.set(
            None if playing is None else bool(playing),
            numbers.get("speed"),
            numbers.get("time"),
            follow=None if follow is None else bool(follow),
        )
        return self.news()

    def news(self) -> dict[str, Any]:
        """What changes by itself: the clock, the archives, what was found."""
        return {
            **(self.stage.clock.told() if self.stage else NO_CLOCK),
            "versions": {which: self.source.snapshot(which).version for which in WHICH},
            "stage_port": self.stage.port if self.stage else None,
            "problem": self.problem,
        }

    # What can be taken home.

    def policy(self, slot: int) -> bytes:
        """A file with whoever is on a lane."""
        episode, _ = self._on(slot)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "archive.safetensors"
            episode.alone.save(file)
            return file.read_bytes()

    def rollout(self, slot: int) -> bytes:
        """What is on a lane, as CSV."""
        episode, stage = self._on(slot)
        assert self.player is not None
        return episode.to_csv(stage.dt, self.player.task.measure_names).encode()

    def film(self, slot: int) -> bytes:
        """What is on a lane, as a GIF: some seconds from where the clock is."""
        episode, stage = self._on(slot)
        span, (every, delay) = int(FILM_SECONDS / stage.dt), film_pace(stage.dt)
        first = min(int(stage.clock.time / stage.dt), max(0, len(episode) - span))
        steps = range(first, min(len(episode), first + span), every)
        with Renderer(stage.model, *FILM_SIZE) as renderer:
            pictures = [Image.fromarray(renderer.draw(episode.qpos[step])) for step in steps]
        content = io.BytesIO()
        pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:], loop=0, duration=delay)
        return content.getvalue()

    # Inside.

    def _archive(self, which: str) -> Archive:
        snapshot = self.source.snapshot(_which(which))
        if snapshot.archive is None:
            raise InputError(snapshot.problem or "there is no such archive.")
        return snapshot.archive

    def _on(self, slot: int) -> tuple[Episode, Stage]:
        episode = self.stage.episode(check_slot(slot)) if self.stage else None
        if episode is None or self.stage is None:
            raise InputError(f"nobody is on lane {slot}.")
        return episode, self.stage

    def _told(self, slot: int) -> dict[str, Any] | None:
        episode = self.stage.episode(slot) if self.stage else None
        return None if episode is None else self._describe(episode)

    def _describe(self, episode: Episode) -> dict[str, Any]:
        return {
            "which": episode.which,
            "measures": list(episode.alone.measure_names),
            "cell": episode.cell,
            "start": episode.start,
            "steps": len(episode),
            "archived": {"objective": episode.archived[0], "measures": episode.archived[1]},
            "seen": {"objective": episode.objective, "measures": episode.measures},
            "levels": levels_of(episode.proxies),
        }


def film_pace(dt: float) -> tuple[int, int]:
    """Control steps from one picture of a GIF to the next, and the milliseconds it says that takes.

    GIFs count in hundredths of a second: the steps are those which fit them best, and then those nearest to
    FILM_FRAME.
    """

    def misfit(every: int) -> tuple[float, float]:
        hundredths = 100 * dt * every
        off = abs(hundredths / max(2, round(hundredths)) - 1)  # browsers slow down what is below two
        return round(off, 6), abs(dt * every - FILM_FRAME)

    every = min(range(1, max(1, int(FILM_LONGEST / dt)) + 1), key=misfit)
    return every, 10 * max(2, round(100 * dt * every))


def levels_of(proxies: NumpyArray) -> list[list[float]]:
    """Measure proxies (t, k) as levels in [0, 1], (k, t): contacts as they are, others scaled."""
    plain = np.isin(proxies, (0.0, 1.0)).all(axis=0)
    low, high = np.where(plain, 0.0, proxies.min(axis=0)), np.where(plain, 1.0, proxies.max(axis=0))
    return [row.tolist() for row in np.round((proxies - low) / np.maximum(high - low, 1e-9), 3).T]


def _which(name: Any) -> str:
    if name not in WHICH:
        raise InputError(f"which archive? {ARCHIVED} or {CORRECTED}, got {name!r}.")
    return str(name)
