"""Files with hostile content, for tests of untrusted files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.commands import Done

DEEP = "[" * 100_000 + "]" * 100_000
"""JSON that is nested too deeply for Python's parser."""
RATHER_DEEP = "[" * 500 + "]" * 500
"""JSON that Python can read, but cannot write with an indent."""
DIGITS = "1" * 5000
"""A whole number with too many digits for int()."""
HALF = '"\\ud800"'
"""A text with half a surrogate pair, which cannot be encoded."""
ODD_JSON = {
    "nothing": b"", "a list": b"[]", "a number": b"5", "null": b"null", "deep": DEEP.encode(),
    "rather deep": RATHER_DEEP.encode(), "digits": DIGITS.encode(), "half a character": HALF.encode(),
    "no text": b"\xff\xfe", "too long": b" " * (2**24 + 1), "no JSON": b"{",
}  # fmt: skip
"""Contents of JSON files that no run writes, by their description."""
LONGEST_LINE = 2500
"""Maximum number of characters of an error message."""

Header = dict[str, Any]


def parts(file: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header: Header | str, data: bytes) -> bytes:
    """A safetensors file with any header."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


def change_description(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the description in the file of an archive."""
    header, data = parts(file)
    description = json.loads(header["__metadata__"]["ppga"])
    change(description)
    header["__metadata__"]["ppga"] = json.dumps(description)
    file.write_bytes(joined(header, data))


def refused(done: Done) -> str:
    """The one-line message of a command that has failed with exit code 2."""
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ppga: ")
    assert len(lines[0]) < LONGEST_LINE
    return lines[0]
