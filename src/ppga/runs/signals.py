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

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What asks a run to stop: Ctrl-C, `kill`, and a terminal that closes. Of these only Ctrl-C is impatient: who
stops a job may send SIGTERM to each of its processes, and these pass it on to each other.
"""
TOGETHER = 0.3
"""Seconds within which several signals count as one: `timeout` and systemd send two at a time."""
Handler = Callable[[int, FrameType | None], None] | signal.Handlers
FINISHING = "\nfinishing this iteration; Ctrl-C again stops at once\n"
STOPPED = "\nppga: stopped at once; ppga train --resume RUN goes on from its last checkpoint\n"
SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def recorded() -> Iterator[list[signal.Signals]]:
    """Record the stop signals that arrive; a second Ctrl-C has the effect that it had before.

    In any thread but the main one, where Python allows no handlers, nothing is recorded.
    """
    caught: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = stop_handlers()
    first = 0.0

    def record(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal first
        watched = before[number] is _watched
        if not caught:
            caught.append(signal.Signals(number))
            first = time.monotonic()
            if not watched:
                _tell(FINISHING)
        elif number == signal.SIGINT and not watched and time.monotonic() - first > TOGETHER:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    with replaced(before, record):
        yield caught


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End this process at once by a stop signal; while such signals are `recorded`, by a second Ctrl-C.

    For commands that do nothing but train. A thread receives the signals, because the main thread may be in
    compiled code for minutes, and ends the process without waiting for the threads that evaluate policies.
    """
    before = stop_handlers()
    reader, writer = socket.socketpair()

    def watch() -> None:
        first = None
        while received := reader.recv(1):
            number, now = received[0], time.monotonic()
            if number not in before or (first is not None and now - first <= TOGETHER):
                continue
            again = first is not None and number == signal.SIGINT
            if again or signal.getsignal(number) is _watched:
                _tell(STOPPED)
                if os.isatty(1):
                    _tell(SHOW_CURSOR, 1)
                os._exit(128 + number)
            if first is None:
                _tell(FINISHING)
            first = now

    thread = threading.Thread(target=watch, daemon=True)
    writer.setblocking(False)
    old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        with replaced(before, _watched):
            yield
    finally:
        signal.set_wakeup_fd(old_descriptor)
        writer.close()
        thread.join()
        reader.close()


def _watched(number: int, frame: FrameType | None) -> None:
    """Handler of signals that the thread of `exit_on_signals` deals with."""


def stop_handlers() -> dict[int, Any]:
    """Present handlers of the stop signals, without those that are ignored: `nohup` has them stay so."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    return {
        number: signal.SIG_DFL if handler is None else handler  # None: it was not installed by Python
        for number, handler in handlers.items()
        if handler is not signal.SIG_IGN
    }


@contextmanager
def replaced(handlers: dict[int, Any], handler: Handler) -> Iterator[None]:
    """Have one handler in place of the given ones, which are put back in the end."""
    for number in handlers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)


def _tell(text: str, descriptor: int = 2) -> None:
    """Write a line if that takes no waiting: whoever reads it may be gone, or not be reading."""
    if sys.__stderr__ is None:  # closed when Python began; the descriptor may be another file's
        return
    with contextlib.suppress(OSError):
        if select.select([], [descriptor], [], 0)[1]:
            os.write(descriptor, text.encode())
