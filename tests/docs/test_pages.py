"""The pages: their links lead somewhere, nothing is unfinished, and they build as a site."""

import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.cmd.build import build_main
from sphinx.util.inventory import InventoryFile

import ppga

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)[^)]*\)|(?:src|href)=[\"']([^\"']+)[\"']")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    return [markdown or html for markdown, html in LINK.findall(text)]


def anchors(text: str) -> list[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def is_dead(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (anchor != "" and anchor not in anchors(prose(target)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_of_a_page_is_dead(page: Path) -> None:
    local = [link for link in links(prose(page)) if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if is_dead(page, link)] == []


def test_links_and_dead_links_are_recognized(tmp_path: Path) -> None:
    assert links('![A](images/a.png) and [b](b.md#c) <img src="d.png">') == [
        "images/a.png",
        "b.md#c",
        "d.png",
    ]
    assert sum(len(links(prose(page))) for page in PAGES) > 5
    page = tmp_path / "page.md"
    page.write_text("# One, `two` and Three?\n")
    assert not is_dead(page, "#one-two-and-three")
    assert is_dead(page, "#one")
    assert is_dead(page, "other.md")


def unfinished(text: str) -> list[str]:
    """Words in capitals outside code, which mark unfinished text."""
    for code in (r"^    .*$", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(code, "", text, flags=re.MULTILINE)
    return re.findall(r"\b[A-Z]{6,}\b|\bTODO\b|\bTBD\b", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_unfinished(page: Path) -> None:
    assert unfinished(prose(page)) == []


def test_unfinished_text_is_recognized() -> None:
    text = "- every step is slower: SOMESPEED\n\n    ppga DAMAGE\n\n`FORMAT=a` [b](LICENSE) MuJoCo XML, TODO"
    assert unfinished(text) == ["SOMESPEED", "TODO"]


# The site.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages as HTML, as `make docs` does it; every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in packages that Sphinx uses
        assert build_main(["-W", "--keep-going", "--quiet", str(ROOT / "docs"), str(folder)]) == 0
    return folder


class Page(HTMLParser):
    """Link targets and anchors of a page of the site."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {"", "top"}
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def test_no_link_of_the_site_is_dead(site: Path) -> None:
    pages = {file.resolve(): Page(file) for file in site.rglob("*.html")}
    assert len(pages) > len(PAGES)
    dead = []
    for file, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            path = path / "index.html" if path.is_dir() else path
            known = path in pages and unquote(parts.fragment) in pages[path].anchors
            if not (known or (path.exists() and not parts.fragment)):
                dead.append(f"{file.name}: {target}")
    assert dead == []


def test_every_page_is_on_the_site(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert page.stem == "index" or f'href="{page.stem}.html"' in index


def test_the_reference_is_complete(site: Path) -> None:
    """It has all public names, and every other name that the pages call or import."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    known = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    assert {f"ppga.{name}" for name in ppga.__all__} - known == set()
    text = "".join(page.read_text() for page in PAGES if page.name not in ("CHANGELOG.md", "api.md"))
    called = set(re.findall(r"\b(ppga(?:\.[a-z_]\w*)*\.\w+)\(", text))
    for home, names in re.findall(r"^from (ppga[\w.]*) import (.*)$", text, flags=re.MULTILINE):
        called |= {f"{home}.{name.strip()}" for name in names.split(",")}
    assert len(called) > 10
    assert called - known == set()
