"""Who may connect to the viewer, and how many: its own pages, not those of other sites."""

import ipaddress
import socket
from typing import Any

MOST_CLIENTS = 64
"""Connections at once to each of its two ports; a page has two or three."""
FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 16\r\n\r\ntoo many at once"
"""What is answered to more."""
OWN_SITES = ("none", "same-origin", "same-site")
"""Values of the header Sec-Fetch-Site in requests of the page, and of the frame on it, from another port."""


def own_names(host: str) -> frozenset[str]:
    """Names of a server that listens on `host`, in lower case; numeric addresses are always its own."""
    return frozenset(name.lower() for name in (host, "localhost", socket.gethostname()))


def is_foreign(headers: Any, names: frozenset[str]) -> bool:
    """Whether a request calls the server by a foreign name, or was made by a page of another origin.

    By a foreign name that leads to this machine, a site evades the browser's rules (DNS rebinding). Programs
    that are no browsers send no Origin and are let in.

    Args:
        headers: of the request; `get_all` gives all values of a name, or nothing.
        names: see `own_names`.
    """
    hosts, origins, sites = (headers.get_all(name) or [] for name in ("Host", "Origin", "Sec-Fetch-Site"))
    if len(hosts) != 1 or not _is_own_name(hosts[0], names):
        return True
    if any(site not in OWN_SITES for site in sites):
        return True
    return any(origin.partition("://")[2].lower() != hosts[0].lower() for origin in origins)


def _is_own_name(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is a numeric address, or a name of this machine."""
    name = (host.rsplit(":", 1)[0] if not host.endswith("]") else host).lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
