"""Access control of the viewer: only its own pages may connect, and only a limited number of clients."""

import ipaddress
import socket
from typing import Any

MOST_CLIENTS = 64
"""Maximum number of connections to each of the two ports; a page has two or three."""
FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 16\r\n\r\ntoo many clients"
"""Response to further connections."""
OWN_SITES = ("none", "same-origin", "same-site")
"""Values of the header Sec-Fetch-Site in requests of the page, and of its frame from the other port."""


def own_names(host: str) -> frozenset[str]:
    """Host names, in lower case, that a server that listens on `host` may be called by."""
    return frozenset(name.lower() for name in (host, "localhost", socket.gethostname()))


def is_foreign(headers: Any, names: frozenset[str]) -> bool:
    """Whether a request uses an unknown host name, or comes from a page of another origin.

    With a host name of its own that resolves to this machine, a site can evade the browser's same-origin
    policy (DNS rebinding). Programs other than browsers send no Origin and are accepted.

    Args:
        headers: headers of the request; `get_all` returns all values of a name, or None.
        names: accepted host names, besides numeric addresses; see `own_names`.
    """
    hosts, origins, sites = (headers.get_all(name) or [] for name in ("Host", "Origin", "Sec-Fetch-Site"))
    if len(hosts) != 1 or not _is_own_name(hosts[0], names):
        return True
    if any(site not in OWN_SITES for site in sites):
        return True
    return any(origin.partition("://")[2].lower() != hosts[0].lower() for origin in origins)


def _is_own_name(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is a numeric address or one of the names."""
    name = (host.rsplit(":", 1)[0] if not host.endswith("]") else host).lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
