"""The structure of the package: which parts may import which, and how long files are; part of `make lint`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
LAYERS = (
    ("errors", "limits", "types", "version"),
    ("config", "machine", "random", "storage"),
    ("physics",),
    ("tasks",),
    ("policies",),
    ("rollouts",),
    ("learners",),
    ("archives", "strategies"),
    ("problems",),
    ("search",),
    ("algorithms",),
    ("distributed",),
    ("runs",),
    ("adaptation", "analysis", "export", "rendering", "viewer"),
    ("doctor", "studies"),
    ("cli",),
)
"""Modules and packages of `ppga`, lowest first; each imports only from its own layer and from lower ones."""
LEVELS = {name: level for level, layer in enumerate(LAYERS) for name in layer}
EXEMPT = ("__init__", "__main__")
"""Modules that offer what all layers have: the public names, and the command line."""
MOST_LINES = 450
JUSTIFICATION = "This file is long because"
"""A longer file has these words in its docstring."""

FILES = sorted((SOURCE / "ppga").rglob("*.py"))


def part(file: Path) -> str:
    """The module or package of `ppga` that a file belongs to."""
    return file.relative_to(SOURCE / "ppga").with_suffix("").parts[0]


def imports(code: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, inside functions and TYPE_CHECKING as well."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def violations(name: str, code: str) -> list[str]:
    """Imports of a file that its layer does not allow.

    Args:
        name: the module or package of `ppga` that the file belongs to.
        code: the file's content.
    """
    found = []
    for line, imported in imports(code):
        top, _, rest = imported.partition(".")
        if top == "benchmarks":
            found.append(f"{line}: {imported} is not part of the package")
        if top != "ppga":
            continue
        below = rest.split(".")[0]
        if below not in LEVELS:
            found.append(f"{line}: {imported} is in no layer")
        elif LEVELS[below] > LEVELS[name]:
            found.append(f"{line}: {name} imports {imported}, which is in a higher layer")
    return found


def test_every_part_has_one_layer() -> None:
    names = [name for layer in LAYERS for name in layer]
    assert sorted(names) == sorted({part(file) for file in FILES} - set(EXEMPT))


def test_imports_point_to_the_same_layer_or_a_lower_one() -> None:
    found = [
        f"{file.relative_to(SOURCE.parent)}:{violation}"
        for file in FILES
        if part(file) in LEVELS
        for violation in violations(part(file), file.read_text())
    ]
    assert not found, "\n".join(found)


def test_parts_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    edges = {
        (part(file), imported.split(".")[1])
        for file in FILES
        for _, imported in imports(file.read_text())
        if imported.startswith("ppga.") and part(file) not in EXEMPT
    }
    for layer in LAYERS:
        left = set(layer)
        while free := {name for name in left if not any((name, other) in edges for other in left - {name})}:
            left -= free
        assert not left, f"{', '.join(sorted(left))} import each other"


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("physics", "from ppga.tasks import Task", "1: physics imports ppga.tasks.Task"),
        ("runs", "def run():\n    import ppga.cli.train", "2: runs imports ppga.cli.train"),
        ("tasks", "if TYPE_CHECKING:\n    from ppga import runs", "2: tasks imports ppga.runs"),
        ("cli", "from benchmarks import physics", "1: benchmarks.physics is not part of the package"),
        ("cli", "from ppga import train", "1: ppga.train is in no layer"),
    ],
)
def test_an_upward_import_is_reported(name: str, code: str, message: str) -> None:
    (found,) = violations(name, code)
    assert found.startswith(message)
    assert violations("runs", "import os\nfrom ppga.runs.folder import x\nfrom ppga import machine") == []


def test_long_files_say_why() -> None:
    contents = {file: file.read_text() for file in FILES}
    found = [
        str(file.relative_to(SOURCE.parent))
        for file, code in contents.items()
        if len(code.splitlines()) > MOST_LINES
        and JUSTIFICATION not in (ast.get_docstring(ast.parse(code)) or "")
    ]
    assert not found, (
        f"more than {MOST_LINES} lines in {', '.join(found)}: split it, or write in its docstring "
        f"'{JUSTIFICATION} ...'"
    )
