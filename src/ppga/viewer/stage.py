"""The stage: robots in three dimensions, each on a lane of its own, all under one clock.

A robot that is followed stays where it is and its lane moves below it, so the camera is the viewer's alone.
"""

import contextlib
import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from ppga.errors import InputError, import_extra
from ppga.rendering import bounds
from ppga.storage import NumpyArray
from ppga.viewer.player import Episode

SLOTS = 2
"""Robots that can be watched at once."""
TICK = 1 / 40
"""Seconds between two pictures."""
COLOURS = ((38, 70, 131), (196, 78, 32))
"""Of the robots, as of their cards on the page."""
LANE = 60.0
"""Metres of a lane that are drawn."""


class Clock:
    """What time it is on the stage, in seconds of simulated time; runs round when all have finished."""

    def __init__(self) -> None:
        self.playing, self.speed, self.follow = True, 1.0, True
        self.length = 0.0
        self._time, self._since = 0.0, time.monotonic()

    @property
    def time(self) -> float:
        """Now."""
        gone = (time.monotonic() - self._since) * self.speed if self.playing else 0.0
        now = self._time + gone
        return now % self.length if self.length else 0.0

    def set(
        self,
        playing: bool | None = None,
        speed: float | None = None,
        at: float | None = None,
        length: float | None = None,
    ) -> None:
        """Change what is given; the rest goes on."""
        now = self.time if at is None else at
        self._time, self._since = now, time.monotonic()
        self.playing = self.playing if playing is None else playing
        self.speed = self.speed if speed is None else speed
        self.length = self.length if length is None else length


class Stage:
    """Shows episodes in the browser, by viser.

    Args:
        model: the robot and its world.
        dt: seconds in a control step.
        host: to listen on.
        port: to begin looking for a free one at.
    """

    def __init__(self, model: mujoco.MjModel, dt: float, host: str, port: int) -> None:
        viser = import_extra("viser", "view")
        self.model, self.dt, self.clock = model, dt, Clock()
        with contextlib.redirect_stdout(io.StringIO()):  # it would print a banner
            self.server: Any = viser.ViserServer(host=host, port=port, verbose=False)
        # whoever connects could ask for a public address otherwise
        self.server.request_share_url = lambda *_, **__: None
        self.port = int(self.server.get_port())
        self._episodes: list[Episode | None] = [None] * SLOTS
        self._lock, self._stopped = threading.Lock(), threading.Event()
        middle, radius = bounds(model)
        self._apart = max(1.2, 1.3 * width(model))
        self._set_up(middle, radius)
        self._robots = [self._robot(slot) for slot in range(SLOTS)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, slot: int, episode: Episode | None) -> None:
        """Put an episode on a lane, or take it away; the clock begins anew."""
        with self._lock:
            self._episodes[slot] = episode
            lengths = [len(one) * self.dt for one in self._episodes if one is not None]
            self.clock.set(at=0.0, length=max(lengths, default=0.0))
            robot = self._robots[slot]
            for handle in robot.bodies.values():
                handle.visible = episode is not None
            robot.lane.visible = episode is not None or slot == 0
        self.draw()

    def episode(self, slot: int) -> Episode | None:
        """What is on a lane."""
        return self._episodes[slot]

    def stop(self) -> None:
        """Close the stage."""
        self._stopped.set()
        self._thread.join()
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()

    # Inside.

    def _set_up(self, middle: NumpyArray, radius: float) -> None:
        server = self.server
        server.scene.set_up_direction("+z")
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.minimize()
        server.scene.configure_environment_map("studio", environment_intensity=0.6)
        server.scene.world_axes.visible = False
        away = 3.0 * radius
        server.initial_camera.position = (0.3 * away, -away, middle[2] + 0.4 * away)
        server.initial_camera.look_at = (0.0, 0.4 * self._apart, 0.6 * middle[2])

    def _robot(self, slot: int) -> "_Robot":
        """A robot and its lane, out of sight yet."""
        scene, across = self.server.scene, slot * self._apart
        root = f"/lane{slot}"
        scene.add_frame(root, show_axes=False, position=(0.0, across, 0.0))
        grid = scene.add_grid(
            f"{root}/floor", width=LANE, height=self._apart * 0.96, plane="xy", cell_size=0.25,
            section_size=1.0, cell_color=(215, 215, 215), section_color=(150, 150, 150), fade_distance=30.0,
            plane_color=(246, 244, 240), plane_opacity=1.0, shadow_opacity=0.25, visible=slot == 0,
        )  # fmt: skip
        bodies = {}
        for body in range(1, self.model.nbody):
            frame = scene.add_frame(f"{root}/body{body}", show_axes=False, visible=False)
            geoms = np.flatnonzero(self.model.geom_bodyid == body)
            for geom in geoms:
                mesh = mesh_of(self.model, int(geom))
                if mesh is not None:
                    scene.add_mesh_simple(
                        f"{root}/body{body}/geom{geom}", np.asarray(mesh.vertices, np.float32),
                        np.asarray(mesh.faces, np.uint32), color=COLOURS[slot], flat_shading=False,
                        wxyz=self.model.geom_quat[geom], position=self.model.geom_pos[geom],
                    )  # fmt: skip
            bodies[body] = frame
        return _Robot(bodies, grid)

    def _run(self) -> None:
        """Draw until stopped; only when something has moved."""
        drawn: Any = None
        while not self._stopped.wait(TICK):
            watched = len(self.server.get_clients())
            now = (self.clock.time, self.clock.follow, watched, *map(id, self._episodes))
            if watched and now != drawn:
                self.draw()
                drawn = now

    def draw(self) -> None:
        """Put every body where it is now."""
        with self._lock, self.server.atomic():
            moment = self.clock.time
            for slot, episode in enumerate(self._episodes):
                if episode is None:
                    continue
                step = min(int(moment / self.dt), len(episode) - 1)
                place = episode.place[step]
                trunk = place[1] if len(place) > 1 else np.zeros(3)
                offset = np.array([trunk[0], trunk[1], 0.0]) if self.clock.follow else np.zeros(3)
                robot = self._robots[slot]
                for body, handle in robot.bodies.items():
                    handle.position = place[body] - offset
                    handle.wxyz = episode.turn[step][body]
                robot.lane.position = (-(offset[0] % 1.0), 0.0, 0.0)


@dataclass(frozen=True)
class _Robot:
    """Viser's handles of a robot's bodies, by number, and of the lane below it."""

    bodies: dict[int, Any]
    lane: Any


def mesh_of(model: mujoco.MjModel, geom: int) -> Any:
    """A geom as triangles, in its own frame; None for what is not drawn."""
    trimesh = import_extra("trimesh", "view")
    size, kind = model.geom_size[geom], mujoco.mjtGeom(int(model.geom_type[geom]))
    shapes: dict[mujoco.mjtGeom, Callable[[], Any]] = {
        mujoco.mjtGeom.mjGEOM_SPHERE: lambda: trimesh.creation.icosphere(subdivisions=3, radius=size[0]),
        mujoco.mjtGeom.mjGEOM_CAPSULE: lambda: _centred_capsule(trimesh, size),
        mujoco.mjtGeom.mjGEOM_CYLINDER: lambda: trimesh.creation.cylinder(radius=size[0], height=2 * size[1]),
        mujoco.mjtGeom.mjGEOM_BOX: lambda: trimesh.creation.box(extents=2 * size),
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: lambda: _ellipsoid(trimesh, size),
        mujoco.mjtGeom.mjGEOM_MESH: lambda: _mesh(trimesh, model, int(model.geom_dataid[geom])),
    }
    make = shapes.get(kind)
    return None if make is None or model.geom_rgba[geom, 3] == 0 else make()


def _centred_capsule(trimesh: Any, size: NumpyArray) -> Any:
    capsule = trimesh.creation.capsule(radius=size[0], height=2 * size[1], count=[16, 16])
    capsule.apply_translation([0, 0, -capsule.bounds.mean(axis=0)[2]])
    return capsule


def _ellipsoid(trimesh: Any, size: NumpyArray) -> Any:
    ball = trimesh.creation.icosphere(subdivisions=3)
    ball.apply_scale(size)
    return ball


def _mesh(trimesh: Any, model: mujoco.MjModel, mesh: int) -> Any:
    vertices, faces = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
    return trimesh.Trimesh(
        model.mesh_vert[vertices : vertices + model.mesh_vertnum[mesh]],
        model.mesh_face[faces : faces + model.mesh_facenum[mesh]],
        process=False,
    )


def width(model: mujoco.MjModel) -> float:
    """How far a robot in its default pose reaches to both sides."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    robot = np.flatnonzero(model.geom_bodyid > 0)
    if not len(robot):
        return 1.0
    across, thick = data.geom_xpos[robot, 1], model.geom_size[robot, 0]  # of what is long, its middle
    return float((across + thick).max() - (across - thick).min())


def check_slot(slot: Any) -> int:
    """A lane's number, or an InputError."""
    if not isinstance(slot, int) or not 0 <= slot < SLOTS:
        raise InputError(f"there are {SLOTS} lanes, from 0; got {slot!r}.")
    return slot
