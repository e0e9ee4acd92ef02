"""Objects that are written once: a bucket of S3, GCS or Azure, or one in memory, through obstore.

    put_new      writes an object, durably; raises AlreadyExists if one with other bytes has its name
    upload       writes an object from a file, in parts if it is large; replaces what has the name
    get          its bytes; None if it does not exist. exists: whether it does; size: in bytes, or None
    names_below  the names below a prefix, in order. directly_in: last parts of names with the time of each write, in ms
    remove       removes it, whether or not it exists

A write whose reply was lost is sent again, by us or by a proxy. If the name exists then, the object's bytes decide
whether it is ours: writers that compete for a name put something unique into the bytes. obstore's own retries are off,
so that deadline and circuit breaker count every request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from icestream import errors
from icestream.catalogs import store_options
from icestream.catalogs.object_reader import ObjectReader
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.store_options import StoreKind, StoreOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Answer = TypeVar("Answer")
_QUOTED: Final = re.compile(r'"([^"]+)"')
_CAUSE_CHARACTERS_MAX: Final = 120
_NOT_IMPLEMENTED: Final = "501 Not Implemented"


class Objects(Protocol):
    """Objects that are written once: the methods are described at the head of the module."""

    def reader(self, name: str) -> ObjectReader: ...

    async def put_new(self, name: str, data: bytes) -> None: ...

    async def upload(self, name: str, source: Path | bytes) -> None: ...

    async def get(self, name: str, bytes_max: int) -> bytes | None: ...

    async def exists(self, name: str) -> bool: ...

    async def size(self, name: str) -> int | None: ...

    async def names_below(self, prefix: str) -> Sequence[str]: ...

    async def directly_in(self, folder: str) -> list[tuple[str, int]]: ...

    async def remove(self, name: str) -> None: ...


class Bucket:
    """A bucket of an object store, reached through obstore."""

    def __init__(self, store: ObjectStore, caller: StorageCaller, label: str) -> None:
        """`label`: the name of the bucket in messages, such as `s3 bucket/`."""
        self._store = store
        self._caller = caller
        self._label = label

    def reader(self, name: str) -> ObjectReader:
        """Returns a file object that reads ranges and blocks, for threads. Raises FileNotFoundError."""
        return ObjectReader(self._store, name, self._translate_error)

    async def put_new(self, name: str, data: bytes) -> None:
        """Writes an object on the condition that its name is free. Raises AlreadyExists for other bytes under the name;
        the same bytes are a success, because a repeat after a lost reply finds them."""
        import obstore

        async def put() -> None:
            try:
                # In one request: the condition then covers the whole object, which a multipart upload checks only at
                # its end.
                await obstore.put_async(self._store, name, data, mode="create", use_multipart=False)
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                if not await self._has_content(name, data):
                    raise errors.AlreadyExists(f"{self._label}{name} already exists") from None
            except FileNotFoundError:
                raise errors.UnexpectedAnswer(
                    f"{self._label}: bucket does not exist",
                    hint="create it, or name another in storage.iceberg_config.warehouse and object_store.bucket",
                ) from None
            except obstore.exceptions.BaseError as error:
                if not _is_not_implemented(error):
                    raise
                raise errors.UnexpectedAnswer(
                    f"{self._label} refuses conditional writes (If-None-Match: *): {_first_line(error)}",
                    hint="a warehouse needs a store with conditional writes (docs/object-stores.md)",
                ) from None

        await self._call(f"write {name}", put)

    async def upload(self, name: str, source: Path | bytes) -> None:
        """Writes an object from a file or bytes, in parts if it is large. It replaces what has the name: for names that
        say what the bytes are."""
        import obstore

        async def put() -> None:
            await obstore.put_async(self._store, name, source)

        await self._call(f"write {name}", put)

    async def _has_content(self, name: str, data: bytes) -> bool:
        try:
            return await self._read(name, len(data)) == data
        except errors.UnexpectedAnswer:  # the object is larger
            return False

    async def get(self, name: str, bytes_max: int) -> bytes | None:
        return await self._call(f"read {name}", lambda: self._read(name, bytes_max))

    async def _read(self, name: str, bytes_max: int) -> bytes | None:
        """Returns the bytes of an object; None if it does not exist. Raises UnexpectedAnswer if it is larger than
        `bytes_max`."""
        import obstore

        try:
            result = await obstore.get_async(self._store, name)
        except FileNotFoundError:
            return None
        if result.meta["size"] > bytes_max:
            raise errors.UnexpectedAnswer(
                f"{self._label}{name} has {result.meta['size']} bytes, the limit is {bytes_max}"
            )
        return bytes(await result.bytes_async())

    async def exists(self, name: str) -> bool:
        return await self.size(name) is not None

    async def size(self, name: str) -> int | None:
        import obstore

        async def head() -> int | None:
            try:
                return int((await obstore.head_async(self._store, name))["size"])
            except FileNotFoundError:
                return None

        return await self._call(f"find {name}", head)

    async def names_below(self, prefix: str) -> Sequence[str]:
        import obstore

        async def collect() -> list[str]:
            names = []
            async for chunk in obstore.list(self._store, prefix or None, chunk_size=1000):
                names += [entry["path"] for entry in chunk]
            return sorted(names)

        return await self._call(f"list {prefix}", collect)

    async def directly_in(self, folder: str) -> list[tuple[str, int]]:
        import obstore

        async def collect() -> list[tuple[str, int]]:
            listing = await obstore.list_with_delimiter_async(self._store, folder)
            return [
                (entry["path"].rpartition("/")[2], int(entry["last_modified"].timestamp() * 1000))
                for entry in listing["objects"]
            ]

        return await self._call(f"list {folder}", collect)

    async def remove(self, name: str) -> None:
        import obstore

        async def delete() -> None:
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                return

        await self._call(f"remove {name}", delete)

    async def _call(self, operation: str, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Runs an attempt with deadline, retries and circuit breaker; errors of obstore become those of our tree."""

        async def guarded() -> Answer:
            import obstore

            try:
                return await attempt()
            except (OSError, ValueError, obstore.exceptions.BaseError) as error:
                raise self._translate_error(operation, error) from None

        return await self._caller.read(operation, guarded)

    def _translate_error(self, operation: str, error: Exception) -> errors.IcestreamError:
        """Returns the error of our tree for an error of obstore; everything unknown counts as unavailable."""
        import obstore

        exceptions = obstore.exceptions
        if isinstance(error, PermissionError | exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return errors.AccessDenied(
                f"{self._label} refuses access: {operation}",
                hint="check the keys of storage.iceberg_config.object_store and their permissions",
            )
        if isinstance(error, ValueError):
            return errors.InvalidInput(f"{self._label}: {_first_line(error)}")
        # Ambiguous: obstore does not report whether a failed request had been sent.
        return errors.StorageUnavailable(
            f"{self._label}: {cause_of(str(error))}{_first_line(error)}",
            hint="is the object store running, and are `endpoint` and `region` right?",
            is_ambiguous=True,
        )


def open_bucket(options: StoreOptions, kind: StoreKind, name: str, caller: StorageCaller) -> Bucket:
    """Returns a bucket. Connects with the first request. Raises InvalidInput for a kind without buckets."""
    from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

    config = store_options.obstore_config(options, kind)
    common: dict[str, Any] = {
        "client_options": {
            # Stores of a private network often have no certificate. The scheme of `endpoint` decides.
            "allow_http": True,
            "timeout": timedelta(seconds=options.request_seconds),
            "connect_timeout": timedelta(seconds=options.request_seconds),
        },
        # StorageCaller retries: it knows the deadline of the operation, and which attempts must be told apart.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=options.request_seconds)},
    }
    store: object
    match kind:
        case "s3":
            role = cast("Any", AssumedRole(options)) if options.role_arn is not None else None
            store = S3Store(name, config=cast("Any", config), credential_provider=role, **common)
        case "gcs":
            store = GCSStore(name, config=cast("Any", config), **common)
        case "azure":
            store = AzureStore(name, config=cast("Any", config), **common)
        case "memory":
            store = MemoryStore()
        case _:
            raise errors.InvalidInput(
                f"object stores of type {kind} have no buckets", hint="use `s3`, `gcs`, `azure` or `memory`"
            )
    return Bucket(cast("ObjectStore", store), caller, f"{kind} {name}/")


class AssumedRole:
    """Credential provider for obstore: keys of an assumed AWS role, fetched again before they expire.

    obstore's own provider is not used: it passes the expiry in the time zone that boto3 parsed, and obstore accepts
    only UTC.
    """

    def __init__(self, options: StoreOptions) -> None:
        """Sends no request yet. Raises MissingPart without boto3."""
        try:
            import boto3
        except ImportError:
            raise errors.MissingPart(
                "an AWS role needs boto3, which is not installed", hint="pip install 'icestream[glue]'"
            ) from None
        self._role_arn = options.role_arn
        self._endpoint = options.sts_endpoint
        self._session = boto3.Session(
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            region_name=options.region,
        )

    def __call__(self) -> dict[str, Any]:
        """Returns fresh keys of the role. obstore calls it before the last ones expire."""
        client = self._session.client("sts", endpoint_url=self._endpoint)
        response = client.assume_role(RoleArn=self._role_arn, RoleSessionName="icestream")
        keys = response["Credentials"]
        return {
            "access_key_id": keys["AccessKeyId"],
            "secret_access_key": keys["SecretAccessKey"],
            "token": keys["SessionToken"],
            "expires_at": keys["Expiration"].astimezone(UTC),
        }


def cause_of(text: str) -> str:
    """Returns why no connection could be made, such as `Connection refused: `; empty for any other failure.

    obstore names the cause only in its debug output: it is the innermost quoted text of the connect error.
    """
    _, is_connect, details = text.partition("kind: Connect,")
    words = _QUOTED.findall(details)
    return f"{words[-1][:_CAUSE_CHARACTERS_MAX]}: " if is_connect and words else ""


def _is_not_implemented(error: Exception) -> bool:
    """True if the store does not implement a header of the request. obstore has no exception of its own for it."""
    return _NOT_IMPLEMENTED in str(error)


def _first_line(error: Exception) -> str:
    """Returns the first line of a message: obstore appends a page of debug output."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
