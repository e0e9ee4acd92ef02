"""The Host header of a request: whether it names this machine.

A web page can make its DNS name resolve to 127.0.0.1 (DNS rebinding), and the browser then lets its scripts read the
answers of a listener on this machine. The Host header still has the name of the page. So a listener that serves this
machine only refuses requests whose Host is another name.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from icestream.settings.text import is_loopback


@lru_cache(1024)
def is_local(host: str) -> bool:
    """Whether a Host header names this machine. Clients send the same one with each request."""
    return is_loopback(host_name(host))


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
