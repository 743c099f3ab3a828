"""What the package imports is declared, and private names of other packages are as it expects them."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "ppga").rglob("*.py"))


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def declared() -> dict[str, dict[str, Requirement]]:
    """Requirements by the normalized names of the packages, of each extra; those of all under ""."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {normalized(one.name): one for one in map(Requirement, texts)}
        for extra, texts in groups.items()
    }


@dataclass(frozen=True)
class Import:
    """A module of another package that a file imports; by `import_extra`, with the extra it names."""

    file: str
    module: str
    extra: str | None = None

    def packages(self) -> set[str]:
        """Which may bring it; all that share a namespace, as mujoco and mujoco-mjx do."""
        top = self.module.split(".")[0]
        return {normalized(name) for name in INSTALLED.get(top, [top])}


INSTALLED = packages_distributions()


def imports() -> Iterator[Import]:
    """All that the package imports from others."""
    for file in SOURCES:
        name = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            found: list[Import] = []
            if isinstance(node, ast.Import):
                found = [Import(name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{name} has a relative import"
                found = [Import(name, node.module)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra":
                found = [Import(name, *(ast.literal_eval(argument) for argument in node.args))]
            for one in found:
                if one.module.split(".")[0] not in {*sys.stdlib_module_names, "ppga"}:
                    yield one


def test_all_that_is_imported_is_declared() -> None:
    everything = {name for group in declared().values() for name in group}
    found = list(imports())
    assert {"numpy", "mujoco.mjx", "viser"} <= {one.module for one in found}
    for one in found:
        group = everything if one.extra is None else {*declared()[""], *declared()[one.extra]}
        where = "pyproject.toml" if one.extra is None else f"the extra {one.extra!r} of pyproject.toml"
        assert one.packages() & group, (
            f"{one.file} imports {one.module}, and {where} does not have {' or '.join(one.packages())}"
        )


@dataclass(frozen=True)
class Private:
    """A private or experimental name of another package.

    Attributes:
        package: as it is declared.
        name: what is used.
        user: where.
        look: what is there.
        expected: what the user relies on.
    """

    package: str
    name: str
    user: str
    look: Callable[[], object]
    expected: object


def parameters(place: str) -> Callable[[], list[str]]:
    """Names of the parameters of `module:attribute.attribute`."""

    def look() -> list[str]:
        module, _, path = place.partition(":")
        thing: Any = importlib.import_module(module)
        for name in path.split("."):
            thing = getattr(thing, name)
        return list(inspect.signature(thing).parameters)

    return look


def archive() -> Any:
    """A grid of pyribs with one elite, in the last of its three cells."""
    from ribs.archives import GridArchive

    grid = GridArchive(solution_dim=1, dims=(3,), ranges=[(0, 1)], seed=0)
    grid.add(np.zeros((1, 1)), np.ones(1), np.full((1, 1), 0.9))
    return grid


def properties() -> dict[str, Any]:
    found = archive()._store._props
    return {
        "n_occupied": found["n_occupied"],
        "occupied": found["occupied"].tolist(),
        "occupied_list": found["occupied_list"][:1].tolist(),
    }


def emitter() -> Any:
    from ribs.emitters import EvolutionStrategyEmitter

    return EvolutionStrategyEmitter(archive(), x0=np.zeros(1), sigma0=0.5, batch_size=4)


def collision() -> list[str]:
    from mujoco.mjx._src import collision_driver

    function = next(iter(collision_driver._COLLISION_FUNC.values()))
    return [f"{len(inspect.signature(function).parameters)} parameters", *sorted(vars(function))]


def mjx_data() -> bool:
    import mujoco
    from mujoco import mjx

    return hasattr(mjx.make_data(mujoco.MjModel.from_xml_string("<mujoco/>"), impl="jax"), "_impl")


PAIR = "src/ppga/archives/pair.py"
PRIVATE = [
    Private("ribs", "GridArchive._compute_thresholds", PAIR,
            parameters("ribs.archives:GridArchive._compute_thresholds"),
            ["indices", "objective", "cur_threshold", "learning_rate", "dtype"]),
    Private("ribs", "GridArchive._stats_reset", PAIR,
            parameters("ribs.archives:GridArchive._stats_reset"), ["self"]),
    Private("ribs", "GridArchive._stats_update", PAIR,
            parameters("ribs.archives:GridArchive._stats_update"),
            ["self", "new_objective_sum", "new_best_index"]),
    Private("ribs", "CVTArchive._compute_thresholds", PAIR,
            parameters("ribs.archives:CVTArchive._compute_thresholds"),
            ["indices", "objective", "cur_threshold", "learning_rate", "dtype"]),
    Private("ribs", "CVTArchive._stats_reset", PAIR,
            parameters("ribs.archives:CVTArchive._stats_reset"), ["self"]),
    Private("ribs", "CVTArchive._stats_update", PAIR,
            parameters("ribs.archives:CVTArchive._stats_update"),
            ["self", "new_objective_sum", "new_best_index"]),
    Private("ribs", "GridArchive._rng", PAIR, lambda: type(archive()._rng), np.random.Generator),
    Private("ribs", "GridArchive._store.retrieve", PAIR,
            lambda: archive()._store.retrieve(np.array([2, 0]))[0].tolist(), [True, False]),
    Private("ribs", "GridArchive._store.add", PAIR,
            lambda: list(inspect.signature(archive()._store.add).parameters), ["indices", "data"]),
    Private("ribs", "GridArchive._store.occupied_list", PAIR,
            lambda: archive()._store.occupied_list.tolist(), [2]),
    Private("ribs", "GridArchive._store._props", PAIR,
            properties, {"n_occupied": 1, "occupied": [False, False, True], "occupied_list": [2]}),
    Private("ribs", "EvolutionStrategyEmitter._opt", "src/ppga/algorithms/sep_cma_mae.py",
            lambda: float(emitter()._opt.sigma), 0.5),
    Private("jax", "jax.experimental.buffer_callback", "src/ppga/physics/host.py",
            lambda: parameters("jax.experimental.buffer_callback:buffer_callback")()[:4],
            ["callback", "result_shape_dtypes", "has_side_effect", "vmap_method"]),
    Private("mujoco-mjx", "mujoco.mjx._src.collision_driver._COLLISION_FUNC",
            "src/ppga/physics/mjx_contacts.py", collision, ["4 parameters", "ncon"]),
    Private("mujoco-mjx", "mujoco.mjx.Data._impl", "src/ppga/physics/mjx_engine.py", mjx_data, True),
    Private("viser", "websockets.asyncio.server.serve in its server", "src/ppga/viewer/guard.py",
            lambda: inspect.getsource(importlib.import_module("viser.infra._infra")).count(
                "websockets.asyncio.server.serve("), 1),
    Private("tensorboardx", "tensorboardX.record_writer.masked_crc32c", "src/ppga/runs/loggers.py",
            parameters("tensorboardX.record_writer:masked_crc32c"), ["data"]),
]  # fmt: skip


def unlike(one: Private) -> str | None:
    """What to say of a name that has changed; None if it is as expected."""
    try:
        found = one.look()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found == one.expected:
        return None
    return (
        f"{one.name} has changed in {one.package} {version(one.package)}: expected {one.expected}, "
        f"found {found}. {one.user} uses it: adapt that, or lower the upper bound of {one.package} in "
        "pyproject.toml."
    )


@pytest.mark.parametrize("one", PRIVATE, ids=lambda one: f"{one.package}: {one.name}")
def test_private_names_of_other_packages_are_as_expected(one: Private) -> None:
    message = unlike(one)
    assert message is None, message


def test_a_private_name_that_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ribs.archives import GridArchive

    (one,) = (one for one in PRIVATE if one.name == "GridArchive._stats_update")
    monkeypatch.setattr(GridArchive, "_stats_update", lambda self, best: None)  # noqa: ARG005
    assert "GridArchive._stats_update has changed in ribs" in str(unlike(one))
    assert "found ['self', 'best']. src/ppga/archives/pair.py uses it" in str(unlike(one))
    monkeypatch.delattr(GridArchive, "_stats_update")
    monkeypatch.delattr("ribs.archives._archive_base.ArchiveBase._stats_update", raising=False)
    assert "found AttributeError" in str(unlike(one))


def private_names(file: Path) -> set[str]:
    """Private attributes that a file uses without defining them, and private modules that it imports."""
    used, defined = set(), set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined.add(node.attr)
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            if ast.unparse(node) != "os._exit":  # a public function of Python's
                used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] != "ppga":
            places = [f"{node.module}.{alias.name}".split(".") for alias in node.names]
            used |= {part for place in places for part in place if re.match("_[^_]", part)}
    return used - defined


def test_every_private_name_that_is_used_is_listed() -> None:
    """And its package has an upper bound."""
    used = {(str(file.relative_to(ROOT)), name) for file in SOURCES for name in private_names(file)}
    listed = {part for one in PRIVATE for part in one.name.split(".")}
    assert {("src/ppga/archives/pair.py", "_store"), ("src/ppga/physics/mjx_contacts.py", "_src")} <= used
    assert {(file, name) for file, name in used if name not in listed} == set()
    assert all((ROOT / one.user).is_file() for one in PRIVATE)
    for package in {one.package for one in PRIVATE}:
        bounds = [group[package].specifier for group in declared().values() if package in group]
        assert bounds
        assert all(any(one.operator == "<" for one in bound) for bound in bounds), (
            f"{package} has no upper bound"
        )


def test_the_tested_versions_are_within_the_declared_ones() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {normalized(name): number for name, _, number in (line.partition("==") for line in lines)}
    for extra, group in declared().items():
        for name, requirement in group.items():
            if name in ("ppga", "wandb"):  # wandb is not installed for the tests
                continue
            assert requirement.specifier.contains(pinned[name]), f"{requirement} of {extra!r}: {pinned[name]}"
