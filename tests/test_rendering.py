"""Rendering without a window where EGL is missing: by OSMesa."""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
import os
import mujoco
from ppga.rendering import Renderer

model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 -3 1' dir='0 1 0'/>"
    "<body><freejoint/><geom size='1' rgba='1 0 0 1'/></body></worldbody></mujoco>"
)
for _ in range(2):  # the second one starts after the failure of EGL
    with Renderer(model, 64, 48) as renderer:
        red, green, blue = renderer.draw(model.qpos0)[24, 32]
    assert red > 100 > green == blue, (red, green, blue)
print(os.environ["PYOPENGL_PLATFORM"])
"""


@pytest.mark.skipif(
    ctypes.util.find_library("OSMesa") is None, reason="no OSMesa on this machine (Debian: libosmesa6)"
)
@pytest.mark.parametrize("missing", ["library", "driver"])
def test_osmesa_renders_where_egl_is_missing(missing: str, tmp_path: Path) -> None:
    """EGL fails when it is imported, or when a context is created; both change global state."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")
    }
    if missing == "library":
        for name in ("libEGL.so", "libEGL.so.1"):
            (tmp_path / name).write_text("not a library")
        environment["LD_LIBRARY_PATH"] = str(tmp_path)
    else:
        environment["__EGL_VENDOR_LIBRARY_DIRS"] = str(tmp_path)
    words = [sys.executable, "-c", DRAW]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "osmesa\n"
