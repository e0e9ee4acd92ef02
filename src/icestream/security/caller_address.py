"""The address of a caller, as far as throttle and audit tell callers apart. Pure.

10.1.2.3:50123     host 10.1.2.3     group 10.1.2.3        every connection has another port
[2001:db8::1]:5    host 2001:db8::1  group 2001:db8::/64   a host with one address of a /64 has all of them
::ffff:10.1.2.3    host 10.1.2.3     group 10.1.2.3
anything else      as it is
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

_GROUP_BITS: Final = 64


@lru_cache(1_024)
def host_of(address: str) -> str:
    """The host of an address, without port and brackets."""
    host = _parse(address)
    return address if host is None else str(host)


def address_group(address: str) -> str:
    """The hosts that count as one caller, as text."""
    host = _parse(address)
    if isinstance(host, IPv6Address):
        return str(IPv6Network((host, _GROUP_BITS), strict=False))
    return address if host is None else str(host)


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    host = address
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        host = address.partition(":")[0]
    try:
        parsed = ip_address(host.partition("%")[0])  # without the zone of a link-local address
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
