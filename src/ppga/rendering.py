"""Images of robots, rendered by MuJoCo without a window."""

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
"""OpenGL backends without a window on Linux, in the order they are tried; MUJOCO_GL chooses one."""
PLATFORM = "PYOPENGL_PLATFORM"
"""Environment variable by which PyOpenGL chooses its libraries; MuJoCo's backends set it."""
MARGIN = 1.3
"""Size of the view, as a multiple of the robot in its default pose; robots leap."""


class Renderer:
    """Renders one robot from the side, with a camera that follows its trunk.

    Example:
        >>> with Renderer(task.model, 320, 240) as renderer:  # doctest: +SKIP
        ...     image = renderer.draw(qpos)

    Args:
        model: the robot and its surroundings.
        width: width of the images in pixels.
        height: height of the images in pixels.
        azimuth: horizontal angle of the camera in degrees; at 90, robots walk to the right.
        elevation: vertical angle of the camera in degrees; negative angles look down.

    Raises:
        InputError: this machine cannot render images.
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
        self._gl_context = _open_context(width, height)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.azimuth, self._camera.elevation = azimuth, elevation
        center, radius = bounds(model)
        self._height = center[2]
        half_view = np.radians(model.vis.global_.fovy) / 2
        self._camera.distance = MARGIN * radius / np.tan(half_view) / min(1.0, width / height)

    def draw(self, qpos: NumpyArray) -> NumpyArray:
        """An image (height, width, 3), uint8, of the robot at joint positions (nq,)."""
        self.data.qpos[:] = qpos
        mujoco.mj_forward(self.model, self.data)
        trunk = self.data.xpos[1] if self.model.nbody > 1 else np.zeros(3)
        self._camera.lookat[:] = (trunk[0], trunk[1], self._height)
        self._gl_context.make_current()
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
        image = np.empty((self._area.height, self._area.width, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, self._area, self._context)
        return image[::-1]

    def close(self) -> None:
        """Release the OpenGL context."""
        self._context.free()
        self._gl_context.free()

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_context(width: int, height: int) -> Any:
    """A current OpenGL context without a window, of the first backend that works."""
    problems = []
    for name in _backends():
        platform, imported = os.environ.get(PLATFORM), set(sys.modules)
        try:
            context = importlib.import_module(name).GLContext(width, height)
            context.make_current()
        except Exception as error:  # a missing driver raises different errors
            problems.append(f"{name.removeprefix('mujoco.')}: {_first_line(error)}")
            _undo_import(name, platform, imported)
        else:
            if problems:  # otherwise MuJoCo's C library would load OpenGL with the backend that failed
                os.environ["MUJOCO_GL"] = name.removeprefix("mujoco.")
            return context
    raise InputError(
        "this machine cannot render images without a window (" + "; ".join(problems) + "). "
        "On Debian: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6."
    )


def _undo_import(backend: str, platform: str | None, imported: set[str]) -> None:
    """Remove a failed backend, because PyOpenGL chooses its platform once, when it is imported.

    Args:
        backend: module of the backend.
        platform: value of the environment variable PYOPENGL_PLATFORM before the import; None if not set.
        imported: names of the modules that were imported before.
    """
    if platform is None:
        os.environ.pop(PLATFORM, None)
    else:
        os.environ[PLATFORM] = platform
    for name in set(sys.modules) - imported:
        if name.partition(".")[0] == "OpenGL" or f"{name}.".startswith(f"{backend}."):
            del sys.modules[name]


def _backends() -> Sequence[str]:
    """Modules of the backends, each with a GLContext."""
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if sys.platform == "linux" and chosen in ("", *BACKENDS):
        return tuple(f"mujoco.{name}" for name in ((chosen,) if chosen else BACKENDS))
    return ("mujoco.gl_context",)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def bounds(model: mujoco.MjModel) -> tuple[NumpyArray, float]:
    """Center (3,) and radius of a ball around the robot in its default pose, without fixed geoms."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    robot = np.flatnonzero(model.geom_bodyid > 0)
    if not len(robot):
        return np.zeros(3), 1.0
    positions = data.geom_xpos[robot]
    center = (positions.min(axis=0) + positions.max(axis=0)) / 2
    reach = np.linalg.norm(positions - center, axis=1) + model.geom_rbound[robot]
    return center, float(reach.max())
