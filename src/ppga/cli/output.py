"""Standard output and error of a command, which continues when they can no longer be written."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class _Stream:
    """Another stream until a write to it fails, and /dev/null from then on.

    Args:
        stream: the other one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """See `TextIO.flush`."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        """Connect the descriptor to /dev/null, for all who write to it; say so unless a pipe was closed."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if not isinstance(error, BrokenPipeError):
            print(f"ppga: the rest of the output is lost: {error.strerror}", file=sys.stderr)


@contextmanager
def unfailing_output() -> Iterator[None]:
    """Standard output and error that raise nothing, whether they are closed, broken or full."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # one that was closed; the next file must not get its number
    os.close(descriptor)
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as opened:
        streams = [stream or opened.enter_context(open(os.devnull, "w")) for stream in before]
        sys.stdout, sys.stderr = (cast(TextIO, _Stream(stream)) for stream in streams)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = before
