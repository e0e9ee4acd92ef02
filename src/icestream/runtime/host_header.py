"""The Host header of a request: whether it names this machine.

A web page can make its DNS name resolve to an address of this machine (DNS rebinding), and the browser then lets its
scripts read the answers of a listener here. The Host header still has the name of the page. So a listener refuses
requests whose Host is a name that it does not have (hazard 123). An address cannot be made to resolve to another one: a
listener that other machines reach accepts every address, one that serves this machine only accepts its own.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from icestream.settings.text import is_loopback


@lru_cache(1024)
def is_local(host: str) -> bool:
    """Whether a Host header names this machine. Clients send the same one with each request."""
    return is_loopback(host_name(host))


@lru_cache(1024)
def is_known(host: str, names: frozenset[str], *, is_only_local: bool) -> bool:
    """Whether a Host header is acceptable: this machine, one of `names`, or an address unless `is_only_local`."""
    name = host_name(host)
    if is_loopback(name) or name in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return not is_only_local


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
