"""Cores for workers: each process claims its own cores, also if several runs share a machine."""

import errno
import itertools
import os
import socket

_claims: list[socket.socket] = []
"""Sockets of this process's claims; the system closes them when the process ends for any reason."""


def pin(count: int) -> None:
    """Restrict this thread, and threads that it starts, to a number of cores; to all if there are not enough.

    Cores with the fewest other workers of this machine are chosen. A core is claimed by binding an address in
    Linux's abstract socket namespace, which only one process of any user and run can bind. Nothing happens if
    the operating system cannot restrict threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own: set[int] = set()
    candidates = ((workers, core) for workers in itertools.count() for core in cores)
    while len(own) < min(count, len(cores)):
        workers, core = next(candidates)
        if core not in own and _claim(f"\0ppga-core-{core}-{workers}"):
            own.add(core)
    os.sched_setaffinity(0, own)


def _claim(address: str) -> bool:
    """Bind an address until this process ends; False if another process has bound it."""
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
