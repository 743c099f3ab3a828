"""What this machine has: named in every benchmark, and shown by `ppga doctor`."""

import importlib.util
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from ppga.errors import InputError
from ppga.version import __version__

PACKAGES = (
    "jax", "jaxlib", "mujoco", "mujoco-mjx", "gymnasium", "numpy", "optax", "ribs",
    "safetensors", "scikit-learn", "brax", "qdax",
)  # fmt: skip
EXTRAS = {"mjx": "mujoco.mjx", "view": "viser", "export": "onnxruntime", "compare": "brax"}
"""Optional extra -> the package it brings."""


def describe() -> dict[str, Any]:
    """CPU, cores, memory, devices and versions, ready for JSON."""
    import jax

    return {
        "cpu": cpu_model(),
        "cores": visible_cores(),
        "memory_gib": _memory_gib(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "versions": {"ppga": __version__, **{name: version_of(name) for name in PACKAGES}},
        "extras": {extra: installed(module) for extra, module in EXTRAS.items()},
    }


def check_devices() -> None:
    """Find JAX's devices, or say what it was asked for."""
    import jax

    try:
        jax.devices()
    except Exception as error:  # JAX raises several kinds, assertions among them
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = str(error).split("\n")[0]
        raise InputError(f"JAX finds no device (JAX_PLATFORMS={asked!r}). {reason}") from None


def visible_cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def version_of(package: str) -> str:
    """Installed version, or a plain word that there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it (its parent package is)."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def cpu_model() -> str:
    """What the processor is called."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def peak_memory_gib() -> float | None:
    """The most memory this process has held so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 2**20 / (1024 if platform.system() == "Darwin" else 1), 2)


def used_memory() -> int:
    """Bytes of memory this process holds now; the most it ever held, where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return int((peak_memory_gib() or 0.0) * 2**30)


def free_memory() -> int:
    """Bytes of memory that can still be had; all there are, where the system does not tell more."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = int((_memory_gib() or 8.0) * 2**30)
    return min([free, *_free_in_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def _free_in_groups(root: Path, own: Path) -> list[int]:
    """Bytes that are free in the control groups around this process which have a limit (version 2)."""
    try:
        place = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    inside = root / place.lstrip("/")
    free = []
    for group in (inside, *inside.parents):
        try:
            limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            if limit != "max":  # what files have in memory can be had
                free.append(int(limit) - int(used) + int(told.get("inactive_file", 0)))
        except (OSError, ValueError):
            pass
        if group == root:
            break
    return free
