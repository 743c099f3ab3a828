"""The pages: what they point at is there, and nothing is left to be filled in."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)[^)]*\)|(?:src|href)=[\"']([^\"']+)[\"']")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [one or other for one, other in LINK.findall(prose(page))]
    near = [target for target in targets if not re.match(r"[a-z]+:|#", target)]
    missing = [target for target in near if not (page.parent / target.partition("#")[0]).exists()]
    assert missing == []


def test_there_are_links_to_look_at() -> None:
    found = LINK.findall('![A](images/a.png) and [b](b.md#c) <img src="d.png">')
    assert [one or other for one, other in found] == ["images/a.png", "b.md#c", "d.png"]
    assert sum(len(LINK.findall(prose(page))) for page in PAGES) > 5


def unfinished(text: str) -> list[str]:
    """Words in capitals as they stand for what is to be filled in; code may have them."""
    for code in (r"^    .*$", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(code, "", text, flags=re.MULTILINE)
    return re.findall(r"\b[A-Z]{6,}\b|\bTODO\b|\bTBD\b", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    assert unfinished(prose(page)) == []


def test_what_is_left_to_be_filled_in_is_seen() -> None:
    text = "- every step is slower: SOMESPEED\n\n    ppga DAMAGE\n\n`FORMAT=a` [b](LICENSE) MuJoCo XML, TODO"
    assert unfinished(text) == ["SOMESPEED", "TODO"]
