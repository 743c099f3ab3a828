"""The 3D view: robots side by side, each on a lane of its own, all with one clock.

While the camera follows the robots, they stay in place and their lanes move below them, so that only the user
moves the camera.
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
"""Number of lanes."""
TICK = 1 / 40
"""Seconds between two updates of the view."""
COLORS = ((38, 70, 131), (196, 78, 32))
"""Colors of the robots, also of their cards on the page."""
OBSTACLE_COLOR = (168, 172, 178)
"""Color of fixed geoms, such as walls and steps."""
MAX_OBSTACLE_RADIUS = 3.0
"""Meters around the center of the obstacles that the first camera position shows at most."""
LANE_LENGTH, SQUARE, LINE_HEIGHT = 60.0, 0.5, 0.003
"""Meters: length of a lane, distance between its lines, and their height above the floor."""


class Clock:
    """Simulated time in seconds; it starts again at 0 when the longest episode has ended."""

    def __init__(self) -> None:
        self.playing, self.speed, self.follow = True, 1.0, True
        self.length = 0.0
        self._time, self._since = 0.0, time.monotonic()
        self._lock = threading.RLock()  # so that no reader sees a partial change

    @property
    def time(self) -> float:
        """Current time."""
        with self._lock:
            elapsed = (time.monotonic() - self._since) * self.speed if self.playing else 0.0
            now = self._time + elapsed
            return now % self.length if self.length else 0.0

    def set(
        self,
        playing: bool | None = None,
        speed: float | None = None,
        at: float | None = None,
        length: float | None = None,
        follow: bool | None = None,
    ) -> None:
        """Change the given properties; None leaves a property as it is.

        Args:
            playing: whether the time advances.
            speed: simulated seconds per second.
            at: the time.
            length: seconds of the longest episode.
            follow: whether the camera follows the robots.
        """
        with self._lock:
            now = self.time if at is None else at
            self._time, self._since = now, time.monotonic()
            self.playing = self.playing if playing is None else playing
            self.speed = self.speed if speed is None else speed
            self.length = self.length if length is None else length
            self.follow = self.follow if follow is None else follow

    def state(self) -> dict[str, Any]:
        """All properties at one time."""
        with self._lock:
            return {
                "time": self.time,
                "length": self.length,
                "playing": self.playing,
                "speed": self.speed,
                "follow": self.follow,
            }


class Stage:
    """Shows episodes in the browser, with viser.

    Args:
        model: the robot and its surroundings.
        dt: seconds of a control step.
        host: host name or address to listen on.
        port: first port to try.
    """

    def __init__(self, model: mujoco.MjModel, dt: float, host: str, port: int) -> None:
        import_extra("viser", "view")
        from ppga.viewer.guard import guarded_viser

        self.model, self.dt, self.clock = model, dt, Clock()
        with _quiet():  # viser prints a banner
            self.server, self.guard = guarded_viser(host, port)
        self.port = int(self.server.get_port())
        self._episodes: list[Episode | None] = [None] * SLOTS
        self._lock, self._stopped = threading.Lock(), threading.Event()
        center, radius = bounds(model)
        obstacles = obstacles_size(model)
        # obstacles move with a lane by up to their width
        self._lane_distance = max(1.2, 1.3 * width(model), 2 * obstacles[1])
        self._set_up(center, max(radius, min(MAX_OBSTACLE_RADIUS, np.hypot(*obstacles) / 2)))
        self.robots = [self._robot(slot) for slot in range(SLOTS)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, slot: int, episode: Episode | None) -> None:
        """Show an episode on a lane, or remove the one there (None), and set the time to 0."""
        with self._lock:
            self._episodes[slot] = episode
            lengths = [len(each) * self.dt for each in self._episodes if each is not None]
            self.clock.set(at=0.0, length=max(lengths, default=0.0))
            robot = self.robots[slot]
            for handle in robot.bodies.values():
                handle.visible = episode is not None
            robot.lane.floor.visible = episode is not None or slot == 0
        self.draw()

    def episode(self, slot: int) -> Episode | None:
        """The episode on a lane; None if the lane is empty."""
        return self._episodes[slot]

    def stop(self) -> None:
        """Stop drawing and close viser's server."""
        self._stopped.set()
        self._thread.join()
        with _quiet():
            self.server.stop()

    def _set_up(self, center: NumpyArray, radius: float) -> None:
        """Set up viser's scene and camera for a robot with a center (3,) and a radius."""
        server = self.server
        server.scene.set_up_direction("+z")
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.minimize()
        server.scene.configure_environment_map("studio", environment_intensity=0.6)
        server.scene.world_axes.visible = False
        distance = 2.6 * radius
        server.initial_camera.position = (0.6 * distance, -0.8 * distance, center[2] + 0.4 * distance)
        server.initial_camera.look_at = (0.0, 0.4 * self._lane_distance, 0.6 * center[2])

    def _robot(self, slot: int) -> "_Robot":
        """Create the robot of a lane, not visible yet; its body 0 consists of the obstacles."""
        scene, offset = self.server.scene, slot * self._lane_distance
        root = f"/lane{slot}"
        scene.add_frame(root, show_axes=False, position=(0.0, offset, 0.0))
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
                        np.asarray(mesh.faces, np.uint32), color=COLORS[slot] if body else OBSTACLE_COLOR,
                        flat_shading=body == 0, wxyz=self.model.geom_quat[geom],
                        position=self.model.geom_pos[geom],
                    )  # fmt: skip
        return _Robot(bodies, _Lane(scene, f"{root}/floor", self._lane_distance * 0.96, visible=slot == 0))

    def _run(self) -> None:
        """Draw until stopped, when a client is connected and something has changed."""
        drawn: Any = None
        while not self._stopped.wait(TICK):
            watchers = self.guard.watchers
            now = (self.clock.time, self.clock.follow, watchers, *map(id, self._episodes))
            if watchers and now != drawn:
                self.draw()
                drawn = now

    def draw(self) -> None:
        """Move every body to its position at the current time."""
        with self._lock, self.server.atomic():
            clock = self.clock.state()
            for slot, episode in enumerate(self._episodes):
                if episode is None:
                    continue
                step = min(int(clock["time"] / self.dt), len(episode) - 1)
                position = episode.position[step]
                trunk = position[1] * (1, 1, 0) if len(position) > 1 else np.zeros(3)
                offset = trunk if clock["follow"] else np.zeros(3)
                robot = self.robots[slot]
                for body, handle in robot.bodies.items():
                    handle.position = position[body] - offset
                    handle.wxyz = episode.quaternion[step][body]
                robot.lane.move(trunk - offset, trunk)


_QUIET = threading.Lock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence rich's global console, which viser and its threads print on; ppga has consoles of its own."""
    console = rich.get_console()
    with _QUIET:
        before, console.quiet = console.quiet, True
        try:
            yield
        finally:
            console.quiet = before


class _Lane:
    """A piece of the floor that stays below its robot, with lines that stay in place in the simulation.

    Args:
        scene: viser's scene.
        name: name of the floor in the scene.
        width: width of the floor in meters.
        visible: whether it is visible at first.
    """

    def __init__(self, scene: Any, name: str, width: float, visible: bool) -> None:
        self.width = width
        self.floor = scene.add_frame(name, show_axes=False, visible=visible)
        ground, line = (246, 244, 240), (196, 194, 190)
        scene.add_grid(
            f"{name}/ground", width=LANE_LENGTH, height=width, plane="xy", cell_thickness=0.0,
            section_thickness=0.0, plane_color=ground, plane_opacity=1.0, shadow_opacity=0.25,
        )  # fmt: skip
        offsets = np.arange(SQUARE - LANE_LENGTH / 2, LANE_LENGTH / 2 + SQUARE / 2, SQUARE)
        ends = np.array([[0, -width / 2, LINE_HEIGHT], [0, width / 2, LINE_HEIGHT]])
        segments = ends + offsets[:, None, None] * np.array([1, 0, 0])
        self.across = scene.add_line_segments(f"{name}/across", segments.astype(np.float32), line)
        # in short segments, because a line that reaches behind the camera is not drawn
        ends = np.array([[-SQUARE, 0, LINE_HEIGHT], [0, 0, LINE_HEIGHT]])
        segments = ends + offsets[:, None, None] * np.array([1, 0, 0])
        count = max(2, round(width / SQUARE))
        self.along = [
            scene.add_line_segments(f"{name}/along{n}", segments.astype(np.float32), line)
            for n in range(count)
        ]

    def move(self, shown: NumpyArray, position: NumpyArray) -> None:
        """Move the floor below its robot.

        Args:
            shown: (3,) position of the robot on its lane.
            position: (3,) position of the robot in the simulation.
        """
        self.floor.position = shown
        self.across.position = (-(position[0] % SQUARE), 0.0, 0.0)
        gap = self.width / len(self.along)
        for number, line in enumerate(self.along):
            line.position = (0.0, (number * gap - position[1]) % self.width - self.width / 2, 0.0)


@dataclass(frozen=True)
class _Robot:
    """A robot in viser's scene.

    Attributes:
        bodies: number of a body -> viser's handle.
        lane: the lane below the robot.
    """

    bodies: dict[int, Any]
    lane: _Lane


def mesh_of(model: mujoco.MjModel, geom: int) -> Any:
    """A geom as a triangle mesh in its own frame; None if it is invisible or a plane."""
    trimesh = import_extra("trimesh", "view")
    size, kind = model.geom_size[geom], mujoco.mjtGeom(int(model.geom_type[geom]))
    shapes: dict[mujoco.mjtGeom, Callable[[], Any]] = {
        mujoco.mjtGeom.mjGEOM_SPHERE: lambda: trimesh.creation.icosphere(subdivisions=3, radius=size[0]),
        mujoco.mjtGeom.mjGEOM_CAPSULE: lambda: _centered_capsule(trimesh, size),
        mujoco.mjtGeom.mjGEOM_CYLINDER: lambda: trimesh.creation.cylinder(radius=size[0], height=2 * size[1]),
        mujoco.mjtGeom.mjGEOM_BOX: lambda: trimesh.creation.box(extents=2 * size),
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: lambda: _ellipsoid(trimesh, size),
        mujoco.mjtGeom.mjGEOM_MESH: lambda: _mesh(trimesh, model, int(model.geom_dataid[geom])),
    }
    make = shapes.get(kind)
    return None if make is None or model.geom_rgba[geom, 3] == 0 else make()


def _centered_capsule(trimesh: Any, size: NumpyArray) -> Any:
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
    """Width of a robot in its default pose in meters, along y."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    robot = np.flatnonzero(model.geom_bodyid > 0)
    if not len(robot):
        return 1.0
    position, radius = data.geom_xpos[robot, 1], model.geom_size[robot, 0]  # of long geoms, their centers
    return float((position + radius).max() - (position - radius).min())


def obstacles_size(model: mujoco.MjModel) -> NumpyArray:
    """Size (2,) in meters, along x and y, of the box around all fixed geoms but planes."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    fixed = np.flatnonzero((model.geom_bodyid == 0) & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE))
    if not len(fixed):
        return np.zeros(2)
    rotation = data.geom_xmat[fixed].reshape(-1, 3, 3)
    box_center, half_size = model.geom_aabb[fixed, :3], model.geom_aabb[fixed, 3:]
    center = data.geom_xpos[fixed] + np.einsum("gij,gj->gi", rotation, box_center)
    reach = np.einsum("gij,gj->gi", np.abs(rotation), half_size)
    return np.asarray(((center + reach).max(axis=0) - (center - reach).min(axis=0))[:2])


def check_slot(slot: Any) -> int:
    """Return the number of a lane, or raise an InputError."""
    if not isinstance(slot, int) or not 0 <= slot < SLOTS:
        raise InputError(f"slot must be the position of a robot, 0 to {SLOTS - 1}, got {slot!r}.")
    return slot
