"""What the keys of one table allow: the session policy of a role (hazard 111). Pure.

    read     s3:GetObject             PLACE/*        for each place of the table
    write    s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload as well
    never    lists, ACLs, versions, the bucket, and everything outside of the places

A policy names exact places and ends each with `/*`: `…/orders` would match `…/orders2`. `*`, `?` and `$` in a place
would be wildcards and variables of the policy's language, so places have letters, digits and `._=/-` only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.catalogs.object_files import parse_object_location

_PLAIN: Final = re.compile(r"[A-Za-z0-9._=/-]+")
_READ: Final = ("s3:GetObject",)
_WRITE: Final = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


class S3Place(NamedTuple):
    """A directory of a table in a bucket."""

    bucket: str
    prefix: str  # of the names of its objects, without a slash at the end; never empty


def s3_places(locations: Sequence[str]) -> list[S3Place]:
    """Returns the places of a table in S3; none if one of them is elsewhere, or is a whole bucket."""
    places = []
    for location in locations:
        try:
            place = parse_object_location(location)
        except errors.InvalidInput:
            return []
        if place.kind != "s3" or not place.bucket or not place.name:
            return []
        places.append(S3Place(place.bucket, place.name))
    return places


def s3_bucket(location: str) -> str | None:
    """Returns the bucket of a location; None if it is not in S3."""
    try:
        place = parse_object_location(location)
    except errors.InvalidInput:
        return None
    return place.bucket if place.kind == "s3" and place.bucket else None


def session_policy(places: Sequence[S3Place], partition: str, *, is_writer: bool) -> str | None:
    """Returns the policy as JSON; None if it cannot be said of these places, or would be too long for a session.
    `partition`: of AWS, the second part of ARNs."""
    if not places or not all(_PLAIN.fullmatch(place.bucket) and _PLAIN.fullmatch(place.prefix) for place in places):
        return None
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": [*_READ, *(_WRITE if is_writer else ())],
        "Resource": [f"arn:{partition}:s3:::{place.bucket}/{place.prefix}/*" for place in places],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":"))
    return policy if len(policy) <= limits.SESSION_POLICY_CHARACTERS_MAX else None
