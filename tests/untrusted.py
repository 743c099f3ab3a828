"""What tests of untrusted files share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import Done

DEEP = "[" * 100_000 + "]" * 100_000
"""JSON that Python's parser gives up on."""
RATHER_DEEP = "[" * 500 + "]" * 500
"""JSON that can be read, and not written with an indent."""
DIGITS = "1" * 5000
"""A whole number that int() refuses."""
HALF = '"\\ud800"'
"""A text with half of a surrogate pair, which cannot be encoded."""
LONGEST_LINE = 2500
"""Characters of an error, at most."""

Header = dict[str, Any]


def parts(file: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header: Header | str, data: bytes) -> bytes:
    """A safetensors file, whatever its header says."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


def change_description(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Give an archive another description."""
    header, data = parts(file)
    description = json.loads(header["__metadata__"]["ppga"])
    change(description)
    header["__metadata__"]["ppga"] = json.dumps(description)
    file.write_bytes(joined(header, data))


def refused(done: Done) -> str:
    """The message of a command that was refused in one line."""
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ppga: ")
    assert len(lines[0]) < LONGEST_LINE
    return lines[0]
