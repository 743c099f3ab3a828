"""The stage: robots in three dimensions, each on a lane of its own, all under one clock.

A robot that is followed stays where it is and its lane moves below it, so the camera is the viewer's alone.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import rich

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
WORLD_COLOUR = (168, 172, 178)
"""Of what stands about: walls, steps."""
WORLD_SEEN = 3.0
"""Metres of it, from its middle, that the camera makes room for at most."""
LANE, SQUARE, ABOVE = 60.0, 0.5, 0.003
"""Metres of a lane that are drawn, from one of its lines to the next, and how far they are above it."""


class Clock:
    """What time it is on the stage, in seconds of simulated time; runs round when all have finished."""

    def __init__(self) -> None:
        self.playing, self.speed, self.follow = True, 1.0, True
        self.length = 0.0
        self._time, self._since = 0.0, time.monotonic()
        self._lock = threading.RLock()  # or a picture might see half a change

    @property
    def time(self) -> float:
        """Now."""
        with self._lock:
            gone = (time.monotonic() - self._since) * self.speed if self.playing else 0.0
            now = self._time + gone
            return now % self.length if self.length else 0.0

    def set(
        self,
        playing: bool | None = None,
        speed: float | None = None,
        at: float | None = None,
        length: float | None = None,
        follow: bool | None = None,
    ) -> None:
        """Change what is given; the rest goes on."""
        with self._lock:
            now = self.time if at is None else at
            self._time, self._since = now, time.monotonic()
            self.playing = self.playing if playing is None else playing
            self.speed = self.speed if speed is None else speed
            self.length = self.length if length is None else length
            self.follow = self.follow if follow is None else follow

    def told(self) -> dict[str, Any]:
        """All of it at one moment."""
        with self._lock:
            return {
                "time": self.time,
                "length": self.length,
                "playing": self.playing,
                "speed": self.speed,
                "follow": self.follow,
            }


class Stage:
    """Shows episodes in the browser, by viser.

    Args:
        model: the robot and its world.
        dt: seconds in a control step.
        host: to listen on.
        port: to begin looking for a free one at.
    """

    def __init__(self, model: mujoco.MjModel, dt: float, host: str, port: int) -> None:
        import_extra("viser", "view")
        from ppga.viewer.guard import guarded_viser

        self.model, self.dt, self.clock = model, dt, Clock()
        with _quiet():  # it would print a banner
            self.server, self.guard = guarded_viser(host, port)
        self.port = int(self.server.get_port())
        self._episodes: list[Episode | None] = [None] * SLOTS
        self._lock, self._stopped = threading.Lock(), threading.Event()
        middle, radius = bounds(model)
        world = world_size(model)
        self._apart = max(1.2, 1.3 * width(model), 2 * world[1])  # a world moves by up to its width
        self._set_up(middle, max(radius, min(WORLD_SEEN, np.hypot(*world) / 2)))
        self.robots = [self._robot(slot) for slot in range(SLOTS)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, slot: int, episode: Episode | None) -> None:
        """Put an episode on a lane, or take it away; the clock begins anew."""
        with self._lock:
            self._episodes[slot] = episode
            lengths = [len(one) * self.dt for one in self._episodes if one is not None]
            self.clock.set(at=0.0, length=max(lengths, default=0.0))
            robot = self.robots[slot]
            for handle in robot.bodies.values():
                handle.visible = episode is not None
            robot.lane.floor.visible = episode is not None or slot == 0
        self.draw()

    def episode(self, slot: int) -> Episode | None:
        """What is on a lane."""
        return self._episodes[slot]

    def stop(self) -> None:
        """Close the stage."""
        self._stopped.set()
        self._thread.join()
        with _quiet():
            self.server.stop()

    # Inside.

    def _set_up(self, middle: NumpyArray, radius: float) -> None:
        server = self.server
        server.scene.set_up_direction("+z")
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.minimize()
        server.scene.configure_environment_map("studio", environment_intensity=0.6)
        server.scene.world_axes.visible = False
        away = 2.6 * radius
        server.initial_camera.position = (0.6 * away, -0.8 * away, middle[2] + 0.4 * away)
        server.initial_camera.look_at = (0.0, 0.4 * self._apart, 0.6 * middle[2])

    def _robot(self, slot: int) -> "_Robot":
        """A robot and its lane, out of sight yet; what stands about in the world is its body 0."""
        scene, across = self.server.scene, slot * self._apart
        root = f"/lane{slot}"
        scene.add_frame(root, show_axes=False, position=(0.0, across, 0.0))
        bodies = {}
        for body in range(self.model.nbody):
            geoms = np.flatnonzero(self.model.geom_bodyid == body)
            meshes = {int(geom): mesh_of(self.model, int(geom)) for geom in geoms}
            if body == 0 and all(mesh is None for mesh in meshes.values()):
                continue
            bodies[body] = scene.add_frame(f"{root}/body{body}", show_axes=False, visible=False)
            for geom, mesh in meshes.items():
                if mesh is not None:
                    scene.add_mesh_simple(
                        f"{root}/body{body}/geom{geom}", np.asarray(mesh.vertices, np.float32),
                        np.asarray(mesh.faces, np.uint32), color=COLOURS[slot] if body else WORLD_COLOUR,
                        flat_shading=body == 0, wxyz=self.model.geom_quat[geom],
                        position=self.model.geom_pos[geom],
                    )  # fmt: skip
        return _Robot(bodies, _Lane(scene, f"{root}/floor", self._apart * 0.96, visible=slot == 0))

    def _run(self) -> None:
        """Draw until stopped; only when something has moved."""
        drawn: Any = None
        while not self._stopped.wait(TICK):
            watchers = self.guard.watchers
            now = (self.clock.time, self.clock.follow, watchers, *map(id, self._episodes))
            if watchers and now != drawn:
                self.draw()
                drawn = now

    def draw(self) -> None:
        """Put every body where it is now."""
        with self._lock, self.server.atomic():
            now = self.clock.told()
            for slot, episode in enumerate(self._episodes):
                if episode is None:
                    continue
                step = min(int(now["time"] / self.dt), len(episode) - 1)
                place = episode.place[step]
                trunk = place[1] * (1, 1, 0) if len(place) > 1 else np.zeros(3)
                offset = trunk if now["follow"] else np.zeros(3)
                robot = self.robots[slot]
                for body, handle in robot.bodies.items():
                    handle.position = place[body] - offset
                    handle.wxyz = episode.turn[step][body]
                robot.lane.put(trunk - offset, trunk)


_QUIET = threading.Lock()


@contextmanager
def _quiet() -> Iterator[None]:
    """viser, also in its own threads, prints by the console that rich keeps for all; ppga has others."""
    console = rich.get_console()
    with _QUIET:
        before, console.quiet = console.quiet, True
        try:
            yield
        finally:
            console.quiet = before


class _Lane:
    """A piece of the floor that is always below its robot, with lines on it that stay where they are in the
    world.

    Args:
        scene: viser's.
        name: of the floor in it.
        width: of the floor, in metres.
        visible: from the beginning.
    """

    def __init__(self, scene: Any, name: str, width: float, visible: bool) -> None:
        self.width = width
        self.floor = scene.add_frame(name, show_axes=False, visible=visible)
        ground, line = (246, 244, 240), (196, 194, 190)
        scene.add_grid(
            f"{name}/ground", width=LANE, height=width, plane="xy", cell_thickness=0.0, section_thickness=0.0,
            plane_color=ground, plane_opacity=1.0, shadow_opacity=0.25,
        )  # fmt: skip
        places = np.arange(SQUARE - LANE / 2, LANE / 2 + SQUARE / 2, SQUARE)
        ends = np.array([[0, -width / 2, ABOVE], [0, width / 2, ABOVE]])
        segments = ends + places[:, None, None] * np.array([1, 0, 0])
        self.across = scene.add_line_segments(f"{name}/across", segments.astype(np.float32), line)
        # in short pieces: one that reaches behind the camera is not drawn
        ends = np.array([[-SQUARE, 0, ABOVE], [0, 0, ABOVE]])
        pieces = (ends + places[:, None, None] * np.array([1, 0, 0])).astype(np.float32)
        count = max(2, round(width / SQUARE))
        self.along = [scene.add_line_segments(f"{name}/along{n}", pieces, line) for n in range(count)]

    def put(self, shown: NumpyArray, place: NumpyArray) -> None:
        """Below a robot that is shown at one place of the stage, and is at another in its world."""
        self.floor.position = shown
        self.across.position = (-(place[0] % SQUARE), 0.0, 0.0)
        gap = self.width / len(self.along)
        for number, line in enumerate(self.along):
            line.position = (0.0, (number * gap - place[1]) % self.width - self.width / 2, 0.0)


@dataclass(frozen=True)
class _Robot:
    """Viser's handles of a robot's bodies, by number, and the lane below it."""

    bodies: dict[int, Any]
    lane: _Lane


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


def world_size(model: mujoco.MjModel) -> NumpyArray:
    """Metres (2,) along x and y that is taken by what stands about in the world, planes aside."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    standing = np.flatnonzero((model.geom_bodyid == 0) & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE))
    if not len(standing):
        return np.zeros(2)
    turn = data.geom_xmat[standing].reshape(-1, 3, 3)
    box, half = model.geom_aabb[standing, :3], model.geom_aabb[standing, 3:]
    middle = data.geom_xpos[standing] + np.einsum("gij,gj->gi", turn, box)
    reach = np.einsum("gij,gj->gi", np.abs(turn), half)
    return np.asarray(((middle + reach).max(axis=0) - (middle - reach).min(axis=0))[:2])


def check_slot(slot: Any) -> int:
    """A lane's number, or an InputError."""
    if not isinstance(slot, int) or not 0 <= slot < SLOTS:
        raise InputError(f"there are {SLOTS} lanes, from 0; got {slot!r}.")
    return slot
