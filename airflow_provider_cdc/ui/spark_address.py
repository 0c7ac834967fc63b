"""Whether the address of a driver's Spark UI can be opened from another machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def reachable_address(url: str | None) -> str | None:
    """Return an address if another machine may reach it, otherwise ``None``.

    The name of the local machine, a loopback address, and a name without a dot, such as the id of a container, mean
    nothing elsewhere.
    """
    if url is None or not url.startswith(("http://", "https://")):
        return None
    try:
        host = urlsplit(url).hostname or ""
        address = ipaddress.ip_address(host)
    except ValueError:
        return url if "." in host.strip(".") and not host.endswith((".localhost", ".localdomain")) else None
    return None if address.is_loopback or address.is_unspecified or address.is_link_local else url
