"""What the keys of one table allow: the session policy of a role (hazard 111). Pure.

    read     s3:GetObject             PLACE/*        for each place of the table
    write    s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload as well
    task     of the pipeline: s3:GetObject, s3:PutObject, s3:AbortMultipartUpload in the folder of data files, and
             s3:GetObject where else files of the table lie that it reads
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
# A task deletes nothing: the driver's clean-up does.
_TASK: Final = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload")


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
    return _policy([((*_READ, *(_WRITE if is_writer else ())), places)], partition)


def task_policy(written: S3Place, read: Sequence[S3Place], partition: str) -> str | None:
    """Returns the policy for a task that writes data files in a folder, and reads there and in other folders; None as
    `session_policy`."""
    return _policy([(_TASK, [written]), *([(_READ, read)] if read else [])], partition)


def _policy(statements: Sequence[tuple[Sequence[str], Sequence[S3Place]]], partition: str) -> str | None:
    places = [place for _, named in statements for place in named]
    if not places or not all(_PLAIN.fullmatch(place.bucket) and _PLAIN.fullmatch(place.prefix) for place in places):
        return None
    allowed: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": [*actions],
            "Resource": [f"arn:{partition}:s3:::{place.bucket}/{place.prefix}/*" for place in named],
        }
        for actions, named in statements
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": allowed}, separators=(",", ":"))
    return policy if len(policy) <= limits.SESSION_POLICY_CHARACTERS_MAX else None
