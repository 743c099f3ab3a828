"""Signals that end a run: the first one after its iteration, a second Ctrl-C at once."""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ppga.errors import STOPPED

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals of Ctrl-C, `kill`, and a terminal that closes. They ask a run to stop after its iteration.

Only a second Ctrl-C stops it at once, because job schedulers send SIGTERM to every process, and the processes
of a run pass it on to each other.
"""
SIMULTANEOUS = 0.3
"""Seconds within which several signals count as one: `timeout` and systemd send two at a time."""
Handler = Callable[[int, FrameType | None], None] | signal.Handlers
FINISHING = "\nfinishing this iteration; Ctrl-C again stops at once\n"
SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def caught_signals() -> Iterator[list[signal.Signals]]:
    """Record stop signals in the list of the context; a second Ctrl-C has the effect of the previous handler.

    In threads other than the main one, where Python allows no handlers, nothing is recorded.
    """
    caught: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = stop_handlers()
    first = 0.0

    def record(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal first
        by_thread = before[number] is _handled_by_thread
        if not caught:
            caught.append(signal.Signals(number))
            first = time.monotonic()
            if not by_thread:
                _print(FINISHING)
        elif number == signal.SIGINT and not by_thread and time.monotonic() - first > SIMULTANEOUS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    with replaced(before, record):
        yield caught


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End this process at once on a stop signal; inside `caught_signals`, on a second Ctrl-C.

    For commands that only train. A thread receives the signals, because the main thread may be in compiled
    code for minutes, and ends the process without waiting for the threads that evaluate policies.
    """
    before = stop_handlers()
    reader, writer = socket.socketpair()

    def handle() -> None:
        first = None
        while received := reader.recv(1):
            number, now = received[0], time.monotonic()
            if number not in before or (first is not None and now - first <= SIMULTANEOUS):
                continue
            again = first is not None and number == signal.SIGINT
            if again or signal.getsignal(number) is _handled_by_thread:
                _print(f"\n{STOPPED}\n")
                if os.isatty(1):
                    _print(SHOW_CURSOR, 1)
                os._exit(128 + number)
            if first is None:
                _print(FINISHING)
            first = now

    thread = threading.Thread(target=handle, daemon=True)
    writer.setblocking(False)
    old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        with replaced(before, _handled_by_thread):
            yield
    finally:
        signal.set_wakeup_fd(old_descriptor)
        writer.close()
        thread.join()
        reader.close()


def _handled_by_thread(number: int, frame: FrameType | None) -> None:
    """Handler of signals that the thread of `exit_on_signals` handles instead of the main thread."""


def stop_handlers() -> dict[int, Any]:
    """Current handlers of the stop signals; without ignored ones, which must stay ignored under `nohup`."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    return {
        number: signal.SIG_DFL if handler is None else handler  # None: it was not installed by Python
        for number, handler in handlers.items()
        if handler is not signal.SIG_IGN
    }


@contextmanager
def replaced(handlers: dict[int, Any], handler: Handler) -> Iterator[None]:
    """Replace handlers within the context.

    Args:
        handlers: signal -> its current handler, which is restored at the end.
        handler: new handler of all these signals.
    """
    for number in handlers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)


def _print(text: str, descriptor: int = 2) -> None:
    """Write to a file descriptor unless that would block, because its reader may have ended or be busy."""
    if sys.__stderr__ is None:  # closed at Python's start; the descriptor may belong to another file
        return
    with contextlib.suppress(OSError):
        if select.select([], [descriptor], [], 0)[1]:
            os.write(descriptor, text.encode())
