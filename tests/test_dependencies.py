"""All imports of the package are declared, and private names of other packages have not changed."""

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
    """Extra -> normalized name of a package -> requirement; required packages have the extra ""."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {normalized(each.name): each for each in map(Requirement, texts)}
        for extra, texts in groups.items()
    }


@dataclass(frozen=True)
class Import:
    """A module of another package that a file imports, and the extra that `import_extra` names for it."""

    file: str
    module: str
    extra: str | None = None

    def packages(self) -> set[str]:
        """Packages that may contain it; several may share a namespace, as mujoco and mujoco-mjx do."""
        top = self.module.split(".")[0]
        return {normalized(name) for name in INSTALLED.get(top, [top])}


INSTALLED = packages_distributions()


def imports() -> Iterator[Import]:
    """All imports of other packages."""
    for file in SOURCES:
        name = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            imported: list[Import] = []
            if isinstance(node, ast.Import):
                imported = [Import(name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{name} has a relative import"
                imported = [Import(name, node.module)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra":
                imported = [Import(name, *(ast.literal_eval(argument) for argument in node.args))]
            for each in imported:
                if each.module.split(".")[0] not in {*sys.stdlib_module_names, "ppga"}:
                    yield each


def test_all_imports_are_declared() -> None:
    everything = {name for group in declared().values() for name in group}
    found = list(imports())
    assert {"numpy", "mujoco.mjx", "viser"} <= {each.module for each in found}
    for each in found:
        group = everything if each.extra is None else {*declared()[""], *declared()[each.extra]}
        where = "pyproject.toml" if each.extra is None else f"the extra {each.extra!r} of pyproject.toml"
        assert each.packages() & group, (
            f"{each.file} imports {each.module}, and {where} does not have {' or '.join(each.packages())}"
        )


@dataclass(frozen=True)
class Private:
    """A private or experimental name of another package.

    Attributes:
        package: the package, as in pyproject.toml.
        name: the name.
        user: file that uses it.
        look: returns the current value of what the file relies on.
        expected: the value that the file relies on.
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
    from ribs.archives import GridArchive

    return GridArchive(solution_dim=1, dims=(3,), ranges=[(0, 1)], seed=0)


def emitter() -> Any:
    from ribs.emitters import EvolutionStrategyEmitter

    return EvolutionStrategyEmitter(archive(), x0=np.zeros(1), sigma0=0.5, batch_size=4)


def gradient_emitter() -> Any:
    from ribs.emitters import GradientArborescenceEmitter

    return GradientArborescenceEmitter(archive(), x0=np.zeros(1), sigma0=0.5, lr=1.0, batch_size=4)


def collision() -> list[str]:
    from mujoco.mjx._src import collision_driver

    function = next(iter(collision_driver._COLLISION_FUNC.values()))
    return [f"{len(inspect.signature(function).parameters)} parameters", *sorted(vars(function))]


def mjx_data() -> bool:
    import mujoco
    from mujoco import mjx

    return hasattr(mjx.make_data(mujoco.MjModel.from_xml_string("<mujoco/>"), impl="jax"), "_impl")


PRIVATE = [
    Private("ribs", "EvolutionStrategyEmitter._opt", "src/ppga/algorithms/sep_cma_mae.py",
            lambda: float(emitter()._opt.sigma), 0.5),
    Private("ribs", "GradientArborescenceEmitter._opt", "src/ppga/algorithms/cma_maega.py",
            lambda: float(gradient_emitter()._opt.sigma), 0.5),
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


def difference(each: Private) -> str | None:
    """A message if a private name has changed; None otherwise."""
    try:
        found = each.look()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found == each.expected:
        return None
    return (
        f"{each.name} has changed in {each.package} {version(each.package)}: expected {each.expected}, "
        f"found {found}. {each.user} uses it: adapt that, or lower the upper bound of {each.package} in "
        "pyproject.toml."
    )


@pytest.mark.parametrize("each", PRIVATE, ids=lambda each: f"{each.package}: {each.name}")
def test_private_names_of_other_packages_are_as_expected(each: Private) -> None:
    message = difference(each)
    assert message is None, message


def test_a_private_name_that_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "tensorboardX.record_writer.masked_crc32c"
    (private,) = (each for each in PRIVATE if each.name == place)
    monkeypatch.setattr(place, lambda content: content)
    assert f"{place} has changed in tensorboardx" in str(difference(private))
    assert "found ['content']. src/ppga/runs/loggers.py uses it" in str(difference(private))
    monkeypatch.delattr(place)
    assert "found AttributeError" in str(difference(private))


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
            if ast.unparse(node) != "os._exit":  # a public function of Python
                used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] != "ppga":
            places = [f"{node.module}.{alias.name}".split(".") for alias in node.names]
            used |= {part for place in places for part in place if re.match("_[^_]", part)}
    return used - defined


def test_every_private_name_in_use_is_listed() -> None:
    """And there is an upper bound for the version of its package."""
    used = {(str(file.relative_to(ROOT)), name) for file in SOURCES for name in private_names(file)}
    listed = {part for each in PRIVATE for part in each.name.split(".")}
    expected = {("src/ppga/algorithms/cma_maega.py", "_opt"), ("src/ppga/physics/mjx_contacts.py", "_src")}
    assert expected <= used
    assert {(file, name) for file, name in used if name not in listed} == set()
    assert all((ROOT / each.user).is_file() for each in PRIVATE)
    for package in {each.package for each in PRIVATE}:
        bounds = [group[package].specifier for group in declared().values() if package in group]
        assert bounds
        assert all(any(each.operator == "<" for each in bound) for bound in bounds), (
            f"{package} has no upper bound"
        )


def test_the_tested_versions_are_within_the_declared_bounds() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {normalized(name): number for name, _, number in (line.partition("==") for line in lines)}
    for extra, group in declared().items():
        for name, requirement in group.items():
            if name in ("ppga", "wandb"):  # wandb is not installed for the tests
                continue
            assert requirement.specifier.contains(pinned[name]), f"{requirement} of {extra!r}: {pinned[name]}"
