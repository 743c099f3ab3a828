"""What is shipped: the wheel's files and what it says of itself."""

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
        patch.chdir(ROOT)  # where the backend looks for the project
        name = build.build_wheel(str(folder))
    return zipfile.ZipFile(folder / name)


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = ROOT / "src"
    files = [
        path for path in (sources / "ppga").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    wanted = {path.relative_to(sources).as_posix() for path in files}
    assert {"ppga/py.typed", "ppga/viewer/page/index.html", "ppga/viewer/page/page.js"} <= wanted
    described = f"ppga-{ppga.__version__}.dist-info/"
    shipped = {name for name in wheel.namelist() if not name.startswith(described)}
    assert shipped == wanted, "no tests, no docs, and every file that the package reads"
    assert described + "licenses/LICENSE" in wheel.namelist()


def test_the_wheel_says_what_it_needs(wheel: zipfile.ZipFile) -> None:
    described = f"ppga-{ppga.__version__}.dist-info/"
    told = email.message_from_bytes(wheel.read(described + "METADATA"))
    assert (told["Name"], told["Version"]) == ("ppga", ppga.__version__)
    assert "archive" in str(told.get_payload()), "the front page"
    extras = set(told.get_all("Provides-Extra", []))
    needed = told.get_all("Requires-Dist", [])
    by_extra = {
        extra: {need.partition(";")[0] for need in needed if f"'{extra}'" in need} for extra in extras
    }
    everything = by_extra.pop("all")
    assert everything == set().union(*(by_extra[extra] for extra in extras - {"all", "dev", "docs"})), (
        "an extra is forgotten"
    )
    assert {"wandb", "brax"} <= {need.partition(">")[0] for need in everything}
    assert "ppga = ppga.cli:main" in wheel.read(described + "entry_points.txt").decode()
