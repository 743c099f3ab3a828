"""The wheel: its files and its metadata."""

import email
import zipfile
from pathlib import Path

import pytest

import ppga

build = pytest.importorskip("hatchling.build")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # where hatchling looks for the project
        name = build.build_wheel(str(folder))
    return zipfile.ZipFile(folder / name)


def test_the_wheel_contains_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = ROOT / "src"
    files = [
        path for path in (sources / "ppga").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    expected = {path.relative_to(sources).as_posix() for path in files}
    assert {"ppga/py.typed", "ppga/viewer/page/index.html", "ppga/viewer/page/page.js"} <= expected
    metadata = f"ppga-{ppga.__version__}.dist-info/"
    shipped = {name for name in wheel.namelist() if not name.startswith(metadata)}
    assert shipped == expected, "no tests, docs or benchmarks, and every file that the package reads"
    assert metadata + "licenses/LICENSE" in wheel.namelist()


def test_the_metadata_names_all_dependencies(wheel: zipfile.ZipFile) -> None:
    metadata = f"ppga-{ppga.__version__}.dist-info/"
    content = email.message_from_bytes(wheel.read(metadata + "METADATA"))
    assert (content["Name"], content["Version"]) == ("ppga", ppga.__version__)
    assert "archive" in str(content.get_payload()), "the README"
    extras = set(content.get_all("Provides-Extra", []))
    needed = content.get_all("Requires-Dist", [])
    by_extra = {
        extra: {need.partition(";")[0] for need in needed if f"'{extra}'" in need} for extra in extras
    }
    everything = by_extra.pop("all")
    assert everything == set().union(*(by_extra[extra] for extra in extras - {"all", "dev", "docs"})), (
        "the extra all should include every extra for users"
    )
    assert {"wandb", "brax"} <= {need.partition(">")[0] for need in everything}
    assert "ppga = ppga.cli:main" in wheel.read(metadata + "entry_points.txt").decode()
