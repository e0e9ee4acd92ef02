"""A role of AWS, assumed for an object store: short-lived keys, fetched again by obstore before they end.

obstore's own provider hands on the end of the keys in the time zone that boto3 read it in, and obstore takes UTC alone.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from icestream import errors
from icestream.catalogs.store_options import StoreOptions


class AssumedRole:
    def __init__(self, options: StoreOptions) -> None:
        """Nothing is asked yet."""
        try:
            import boto3
        except ImportError:
            raise errors.MissingPart(
                "a role of AWS needs boto3, which is not installed", hint="pip install 'icestream[glue]'"
            ) from None
        self._role_arn = options.role_arn
        self._session = boto3.Session(
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            region_name=options.region,
        )

    def __call__(self) -> dict[str, Any]:
        response = self._session.client("sts").assume_role(RoleArn=self._role_arn, RoleSessionName="icestream")
        keys = response["Credentials"]
        return {
            "access_key_id": keys["AccessKeyId"],
            "secret_access_key": keys["SecretAccessKey"],
            "token": keys["SessionToken"],
            "expires_at": keys["Expiration"].astimezone(UTC),
        }
