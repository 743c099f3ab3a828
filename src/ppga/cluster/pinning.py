"""Cores for workers: each process takes its own, also where several runs share a machine."""

import errno
import itertools
import os
import socket

_claims: list[socket.socket] = []
"""What this process holds: the system releases it when the process ends, however it ends."""


def pin(count: int) -> None:
    """Restrict this thread, and those that it starts, to as many cores; fewer if there are not so many.

    Cores that no other worker of this machine has are taken first, then those of which the fewest have one.
    A core is claimed by an address in Linux's abstract socket namespace: only one process at a time has it,
    of whichever user and run. Where the system cannot restrict threads, nothing happens.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    mine: set[int] = set()
    places = ((workers, core) for workers in itertools.count() for core in cores)
    while len(mine) < min(count, len(cores)):
        workers, core = next(places)
        if core not in mine and _claim(f"\0ppga-core-{core}-{workers}"):
            mine.add(core)
    os.sched_setaffinity(0, mine)


def _claim(address: str) -> bool:
    """Hold an address until this process ends, unless another process has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(address)
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    _claims.append(claim)
    return True
