"""TLS of clients that name none, by variables."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.rpc.client_tls import ClientTls, tls_of_variables

CA, CERTIFICATE, KEY = "ICESTREAM_CA_FILE", "ICESTREAM_CERTIFICATE_FILE", "ICESTREAM_KEY_FILE"


@pytest.mark.parametrize(
    ("variables", "tls"),
    [
        ({}, None),
        ({CA: ""}, None),
        ({CA: "system"}, ClientTls()),
        ({CA: "ca.pem"}, ClientTls("ca.pem")),
        ({CA: "ca.pem", CERTIFICATE: "c.pem", KEY: "c.key"}, ClientTls("ca.pem", "c.pem", "c.key")),
        ({CERTIFICATE: "c.pem", KEY: "c.key"}, ClientTls(None, "c.pem", "c.key")),
    ],
)
def test_variables_name_what_a_client_trusts_and_shows(variables: dict[str, str], tls: ClientTls | None) -> None:
    assert tls_of_variables(variables) == tls


def test_a_certificate_without_its_key_is_refused() -> None:
    tls = tls_of_variables({CERTIFICATE: "c.pem"})
    assert tls is not None
    with pytest.raises(errors.InvalidInput, match="needs its key"):
        tls.context()
