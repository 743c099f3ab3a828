"""Pictures of robots by MuJoCo's renderer, without a window."""

import importlib
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import mujoco
import numpy as np

from ppga.errors import InputError
from ppga.storage import NumpyArray

BACKENDS = ("egl", "osmesa")
"""What draws without a window on Linux, in the order they are tried; MUJOCO_GL chooses one."""
PLATFORM = "PYOPENGL_PLATFORM"
"""Environment variable that tells PyOpenGL which libraries to load; MuJoCo's backends set it."""
MARGIN = 1.3
"""How much more than the robot in its first pose is seen: it will leap."""


class Renderer:
    """Draws one robot from the side, the camera following its trunk.

    Example:
        >>> with Renderer(task.model, 320, 240) as renderer:  # doctest: +SKIP
        ...     picture = renderer.draw(qpos)

    Args:
        model: the robot and its world.
        width: of the pictures, in pixels.
        height: likewise.
        azimuth: where the camera looks, in degrees; 90 is along y, so that robots walk to the right.
        elevation: of its view, in degrees.

    Raises:
        InputError: this machine cannot draw.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        width: int,
        height: int,
        azimuth: float = 90.0,
        elevation: float = -12.0,
    ) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        self._window = _open_context(width, height)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.azimuth, self._camera.elevation = azimuth, elevation
        middle, radius = bounds(model)
        self._height = middle[2]
        half_view = np.radians(model.vis.global_.fovy) / 2
        self._camera.distance = MARGIN * radius / np.tan(half_view) / min(1.0, width / height)

    def draw(self, qpos: NumpyArray) -> NumpyArray:
        """A picture (height, width, 3) uint8 of the robot at positions (nq,)."""
        self.data.qpos[:] = qpos
        mujoco.mj_forward(self.model, self.data)
        trunk = self.data.xpos[1] if self.model.nbody > 1 else np.zeros(3)
        self._camera.lookat[:] = (trunk[0], trunk[1], self._height)
        self._window.make_current()
        mujoco.mjv_updateScene(
            self.model,
            self.data,
            self._options,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        mujoco.mjr_render(self._area, self._scene, self._context)
        picture = np.empty((self._area.height, self._area.width, 3), np.uint8)
        mujoco.mjr_readPixels(picture, None, self._area, self._context)
        return picture[::-1]

    def close(self) -> None:
        """Give back what the graphics system lent."""
        self._context.free()
        self._window.free()

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_context(width: int, height: int) -> Any:
    """A current OpenGL context without a window, from the first backend that gives one."""
    problems = []
    for name in _backends():
        platform, imported = os.environ.get(PLATFORM), set(sys.modules)
        try:
            context = importlib.import_module(name).GLContext(width, height)
            context.make_current()
        except Exception as error:  # a missing driver shows itself in many ways
            problems.append(f"{name.removeprefix('mujoco.')}: {_first_line(error)}")
            _undo_import(name, platform, imported)
        else:
            if problems:  # or MuJoCo's C library would load OpenGL by the backend that failed
                os.environ["MUJOCO_GL"] = name.removeprefix("mujoco.")
            return context
    raise InputError(
        "this machine cannot draw robots without a window (" + "; ".join(problems) + "). "
        "On Debian: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6."
    )


def _undo_import(backend: str, platform: str | None, imported: set[str]) -> None:
    """Let another backend import PyOpenGL for its own platform: this choice is made once, at its import.

    Args:
        backend: the module that failed.
        platform: value of the environment variable PYOPENGL_PLATFORM before its import.
        imported: names of the modules that were imported before it.
    """
    if platform is None:
        os.environ.pop(PLATFORM, None)
    else:
        os.environ[PLATFORM] = platform
    for name in set(sys.modules) - imported:
        if name.partition(".")[0] == "OpenGL" or f"{name}.".startswith(f"{backend}."):
            del sys.modules[name]


def _backends() -> Sequence[str]:
    """Modules that have a GLContext."""
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if sys.platform == "linux" and chosen in ("", *BACKENDS):
        return tuple(f"mujoco.{name}" for name in ((chosen,) if chosen else BACKENDS))
    return ("mujoco.gl_context",)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def bounds(model: mujoco.MjModel) -> tuple[NumpyArray, float]:
    """Middle and radius of a ball around the robot in its default pose; the world's own geoms aside."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    robot = np.flatnonzero(model.geom_bodyid > 0)
    if not len(robot):
        return np.zeros(3), 1.0
    places = data.geom_xpos[robot]
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    reach = np.linalg.norm(places - middle, axis=1) + model.geom_rbound[robot]
    return middle, float(reach.max())
