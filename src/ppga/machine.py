"""Hardware and versions of this machine, as recorded with runs and benchmarks and shown by `ppga doctor`."""

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
"""Optional extra -> a module that it installs."""
CACHED_SECONDS = 0.1
"""Programs that take longer to compile are stored on disk."""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux mounts control groups, and the file with the control groups of this process."""


def describe() -> dict[str, Any]:
    """CPU, cores, memory, devices and versions, as plain values for JSON."""
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


def prepare_jax() -> None:
    """Set up JAX for a command: check that it finds a device, and store compiled programs on disk.

    Raises:
        InputError: there is no device.
    """
    import jax

    try:
        jax.devices()
    except Exception as error:  # JAX raises several kinds, assertions among them
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = str(error).split("\n")[0]
        raise InputError(
            f"JAX finds no device (JAX_PLATFORMS={platforms!r}). {reason} Unset JAX_PLATFORMS, or set it to "
            "cpu."
        ) from None
    config: Any = jax.config  # its methods have no types
    if config.jax_compilation_cache_dir is None and (folder := cache_folder()):
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", CACHED_SECONDS)


def cache_folder() -> Path | None:
    """Folder of compiled programs for later runs; None if it cannot be written.

    JAX_COMPILATION_CACHE_DIR sets another folder, and JAX_ENABLE_COMPILATION_CACHE=false turns the cache off.
    JAX never stores programs that call MuJoCo.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "ppga" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


def visible_cores() -> int:
    """CPU cores that this process may use: those of its affinity mask, or fewer if it has a CPU quota."""
    return max(1, min([_affine_cores(), *_core_quotas(GROUPS, OWN_GROUPS)]))


def _affine_cores() -> int:
    """CPU cores of this process's affinity mask, without quotas: the number of XLA's threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _core_quotas(root: Path, own: Path) -> list[int]:
    """CPU quotas, in cores rounded up, of this process's control group and its parents."""
    quotas = []
    version_2 = [(group / "cpu.max",) for group in _groups(root, own)]
    version_1 = [
        (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        for group in _groups(root / "cpu", own, "cpu")
    ]
    for files in (*version_2, *version_1):
        with contextlib.suppress(OSError, ValueError):  # no such file, or no quota ("max")
            quota, period = (int(word) for file in files for word in file.read_text().split())
            if quota > 0 and period > 0:  # -1 means no quota
                quotas.append(math.ceil(quota / period))
    return quotas


def _groups(root: Path, own: Path, controller: str = "") -> list[Path]:
    """Folders of this process's control group and its parents, in that order.

    Args:
        root: where the groups are mounted. Inside a container this may be the process's own group.
        own: file with the process's group, one line for each hierarchy.
        controller: controller of version 1; version 2 by default.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
        group = next(group for _, controllers, group in lines if controller in controllers.split(","))
    except (OSError, ValueError, StopIteration):
        return []
    folder = root / group.lstrip("/")
    return [parent for parent in (folder, *folder.parents) if parent.is_relative_to(root)]


def version_of(package: str) -> str:
    """Version of an installed package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def installed(module: str) -> bool:
    """Whether a module can be imported; imports its parent package, but not the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def cpu_model() -> str:
    """Name of the processor."""
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
    """Largest amount of memory that this process has used so far; None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 2**20 / (1024 if platform.system() == "Darwin" else 1), 2)


def used_memory() -> int:
    """Bytes of memory that this process uses now; the peak so far if the system reports only that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return int((peak_memory_gib() or 0.0) * 2**30)


def free_memory() -> int:
    """Bytes of memory that are still available; all memory if the system does not report what is free."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = int((_memory_gib() or 8.0) * 2**30)
    return min([free, *_free_in_groups(GROUPS, OWN_GROUPS)])


def _free_in_groups(root: Path, own: Path) -> list[int]:
    """Bytes that are free in those control groups of this process that have a limit (version 2)."""
    free = []
    for group in _groups(root, own):
        with contextlib.suppress(OSError, ValueError):
            limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            if limit != "max":  # the kernel frees the inactive page cache on demand
                free.append(int(limit) - int(used) + int(stat.get("inactive_file", 0)))
    return free
