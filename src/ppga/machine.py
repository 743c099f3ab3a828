"""What this machine has: named in every benchmark, and shown by `ppga doctor`."""

import contextlib
import importlib.util
import math
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from ppga.errors import InputError
from ppga.version import __version__

PACKAGES = (
    "jax", "jaxlib", "mujoco", "mujoco-mjx", "gymnasium", "numpy", "optax", "ribs",
    "scikit-learn", "brax", "qdax",
)  # fmt: skip
EXTRAS = {"mjx": "mujoco.mjx", "view": "viser", "export": "onnxruntime", "compare": "brax"}
"""Optional extra -> the package it brings."""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux tells about control groups, and which of them this process is in."""


def describe() -> dict[str, Any]:
    """CPU, cores, memory, devices and versions, ready for JSON."""
    import jax

    return {
        "cpu": cpu_model(),
        "cores": _affine_cores(),
        "usable_cores": visible_cores(),
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
    """CPU cores this process may use: those of its affinity, or fewer if a CPU quota allows no more."""
    return max(1, min([_affine_cores(), *_core_quotas(GROUPS, OWN_GROUPS)]))


def _affine_cores() -> int:
    """CPU cores this process may run on, whatever its quota: XLA has as many threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _core_quotas(root: Path, own: Path) -> list[int]:
    """CPU quotas, in cores and rounded up, of the control groups around this process that have one."""
    quotas = []
    version_2 = [(group / "cpu.max",) for group in _groups(root, own)]
    version_1 = [
        (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        for group in _groups(root / "cpu", own, "cpu")
    ]
    for files in (*version_2, *version_1):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or no quota ("max")
            quota, period = (int(word) for file in files for word in file.read_text().split())
            if quota > 0 and period > 0:  # -1 is no quota
                quotas.append(math.ceil(quota / period))
    return quotas


def _groups(root: Path, own: Path, controller: str = "") -> list[Path]:
    """Folders of the control groups around this process, its own first.

    Args:
        root: where the groups are mounted. Inside a container this may be the process's own group.
        own: file that tells the process's group, one line for each hierarchy.
        controller: of version 1; the groups of version 2 by default.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
        place = next(place for _, controllers, place in lines if controller in controllers.split(","))
    except (OSError, ValueError, StopIteration):
        return []
    inside = root / place.lstrip("/")
    return [group for group in (inside, *inside.parents) if group.is_relative_to(root)]


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
    return min([free, *_free_in_groups(GROUPS, OWN_GROUPS)])


def _free_in_groups(root: Path, own: Path) -> list[int]:
    """Bytes that are free in the control groups around this process which have a limit (version 2)."""
    free = []
    for group in _groups(root, own):
        with contextlib.suppress(OSError, ValueError):
            limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            if limit != "max":  # what files have in memory can be had
                free.append(int(limit) - int(used) + int(told.get("inactive_file", 0)))
    return free
