"""Client certificates: the subject alternative name of a verified certificate becomes a principal.

    listener `native`, SAN of the type `dns` "ingest.example.com"  ->  certificate:native:ingest.example.com

Only the subject alternative name counts, never the common name, and only names of the one type that the settings
choose: a certificate with a name of two types would be two principals. It must have exactly one such name. The
listener is a part of the principal, because listeners may trust different authorities (hazard 116).

TLS has verified the certificate before it comes here. Its validity is checked again, because a connection may be
resumed.
"""

from __future__ import annotations

from typing import Literal

from icestream import errors
from icestream.security.principal import CallerIdentity, Principal, PrincipalKind, check_principal_name
from icestream.security.signed_token import InvalidToken

NameType = Literal["dns", "email", "uri"]


def certificate_identity(certificate: bytes, listener: str, name_type: NameType, now_us: int) -> CallerIdentity:
    """The identity of a certificate in DER form. Raises InvalidToken."""
    from cryptography import x509

    try:
        document = x509.load_der_x509_certificate(certificate)
        begins, ends = document.not_valid_before_utc.timestamp(), document.not_valid_after_utc.timestamp()
        extension = document.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        match name_type:
            case "dns":
                names = extension.value.get_values_for_type(x509.DNSName)
            case "email":
                names = extension.value.get_values_for_type(x509.RFC822Name)
            case "uri":
                names = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise InvalidToken("certificate without a subject alternative name") from error
    if not begins <= now_us / 1e6 < ends:
        raise InvalidToken("certificate expired, or not valid yet")
    if len(names) != 1 or "*" in names[0]:
        raise InvalidToken(f"certificate without exactly one name of the type {name_type}")
    try:
        principal = Principal(PrincipalKind.CERTIFICATE, check_principal_name(listener), check_principal_name(names[0]))
    except errors.InvalidInput:
        raise InvalidToken("malformed name in a certificate") from None
    return CallerIdentity(principal, expires_us=int(ends * 1e6))
