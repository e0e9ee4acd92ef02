"""Which Host headers a listener accepts (hazard 123)."""

from __future__ import annotations

import pytest

from icestream.runtime.advertised_address import known_host_names
from icestream.runtime.host_header import is_known
from icestream.settings import load

TLS = ("tls.certificate=a.pem", "tls.key=a.key")


@pytest.mark.parametrize(
    ("host", "local", "reachable"),
    [
        ("localhost:9040", True, True),
        ("127.0.0.1", True, True),
        ("[::1]:1", True, True),
        ("10.0.0.5:9040", False, True),  # an address cannot be made to resolve to another one
        ("Broker.Example:9040", True, True),
        ("evil.example", False, False),
        ("broker.example.evil.example", False, False),
        ("", False, False),
        ("[bad", False, False),
    ],
)
def test_hazard_123_a_name_that_is_not_ours_is_not_accepted(host: str, local: bool, reachable: bool) -> None:
    names = frozenset({"broker.example"})
    assert is_known(host, names, is_only_local=True) == local
    assert is_known(host, names, is_only_local=False) == reachable


def test_the_names_of_a_listener_follow_from_its_settings() -> None:
    def names(*flags: str) -> frozenset[str] | None:
        return known_host_names(load(flags=flags).settings, "lake")

    assert names() == frozenset()
    assert names("node.bind_host=0.0.0.0", "node.allow_insecure_bind=true") is None
    assert "proxy.example" in (names("node.host_names=Proxy.Example") or ())
    named = names("node.bind_host=0.0.0.0", "node.advertised_host=Broker.Example", *TLS)
    assert named is not None
    assert "broker.example" in named
