"""What a CONNECT packet asks for: its credential and its session. Pure.

    the credential                                       is
    --------------------------------------------------   --------------------------------------------------------------
    a password in the form of a signed token (JWT)       a bearer token; the user name is not looked at
    a password; no user name, an empty one, or `token`   a bearer token
    user name and password                               the password of an account
    no password, and the client showed a certificate     the certificate; the user name is not looked at
    a user name alone                                    the empty password of an account, which is never valid
    nothing                                              none: the rights that were granted to `anonymous`

Devices often have one field for a secret and need a user name beside it, so a token is recognised by its form.
"""

from __future__ import annotations

import re
from typing import Final

from icestream import errors, limits
from icestream.broker.mqtt.client_link import ConnectRequest
from icestream.durable.session_changes import WillMessage
from icestream.mqtt.connection import ServerConnection
from icestream.mqtt.packets import ConnectPacket, Will
from icestream.mqtt.properties import PropertyId, encode_properties
from icestream.security.authenticator import unauthenticated
from icestream.security.credential import BearerCredential, CertificateCredential, Credential, PasswordCredential

_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_TOKEN_USER_NAMES: Final = (None, "", "token")


def credential_of(packet: ConnectPacket, certificate: bytes | None) -> Credential | None:
    """The credential of a client; None if it has none. `certificate`: the verified one of TLS, in DER.

    Raises Unauthenticated for a password that is no text.
    """
    if packet.password is None:
        if certificate is not None:
            return CertificateCredential(certificate)
        return PasswordCredential(packet.user_name, "") if packet.user_name else None
    try:
        password = packet.password.decode()
    except UnicodeDecodeError:
        raise unauthenticated() from None
    if _TOKEN.fullmatch(password) or packet.user_name in _TOKEN_USER_NAMES:
        return BearerCredential(password)
    return PasswordCredential(packet.user_name or "", password)


def request_of(packet: ConnectPacket, connection: ServerConnection) -> ConnectRequest:
    """What the session is asked for, within the bounds of the server. Raises MessageTooLarge."""
    return ConnectRequest(
        client_id=packet.client_id,
        version=packet.version,
        is_clean_start=packet.is_clean_start,
        expiry_s=connection.session_expiry_seconds,
        receive_maximum=connection.send_maximum,
        will=None if packet.will is None else _will_message(packet.will),
    )


def _will_message(will: Will) -> WillMessage:
    properties = will.properties.without(PropertyId.WILL_DELAY_INTERVAL)
    encoded = encode_properties(properties) if properties else b""
    if len(encoded) > limits.MQTT_TEXT_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"the will has {len(encoded)} bytes of properties",
            hint=f"they are kept with the session: at most {limits.MQTT_TEXT_BYTES_MAX} bytes",
        )
    delay_s = will.properties.number(PropertyId.WILL_DELAY_INTERVAL) or 0
    return WillMessage(will.topic, will.payload, will.qos, will.is_retained, delay_s, encoded)
