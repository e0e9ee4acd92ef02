"""Objects that are written once: a bucket of S3, GCS or Azure, or one in memory, through obstore.

    put_new      writes an object, durably; raises AlreadyExists if one with other bytes has its name
    get          its bytes; None if it does not exist. exists: whether it does; size: in bytes, or None
    names_below  the names below a prefix, in order. directly_in: last parts of names with the time of each write, in ms
    remove       removes it, whether or not it exists

A write whose reply was lost is sent again, by us or by a proxy. If its name exists, the bytes tell whether the object
is ours: writers that must be told apart put something unique into them. obstore's own retries are off, so that deadline
and circuit breaker count every request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from icestream import errors
from icestream.catalogs import store_options
from icestream.catalogs.aws_role import AssumedRole
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
    def reader(self, name: str) -> ObjectReader: ...

    async def put_new(self, name: str, data: bytes) -> None: ...

    async def get(self, name: str, bytes_max: int) -> bytes | None: ...

    async def exists(self, name: str) -> bool: ...

    async def size(self, name: str) -> int | None: ...

    async def names_below(self, prefix: str) -> Sequence[str]: ...

    async def directly_in(self, folder: str) -> list[tuple[str, int]]: ...

    async def remove(self, name: str) -> None: ...


class Bucket:
    def __init__(self, store: ObjectStore, caller: StorageCaller, place: str) -> None:
        """`place`: what messages call it, such as `s3://bucket/`."""
        self._store = store
        self._caller = caller
        self._place = place

    def reader(self, name: str) -> ObjectReader:
        """A file to be read in pieces, beside the loop. Raises FileNotFoundError."""
        return ObjectReader(self._store, name, self._explained)

    async def put_new(self, name: str, data: bytes) -> None:
        import obstore

        async def put() -> None:
            try:
                await obstore.put_async(self._store, name, data, mode="create", use_multipart=False)
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                if not await self._is(name, data):
                    raise errors.AlreadyExists(f"{self._place}{name} is there already") from None
            except FileNotFoundError:
                raise errors.UnexpectedAnswer(
                    f"{self._place}: there is no such bucket",
                    hint="make it, or name another in storage.iceberg_config.warehouse and object_store.bucket",
                ) from None
            except obstore.exceptions.BaseError as error:
                if not _is_not_implemented(error):
                    raise
                raise errors.UnexpectedAnswer(
                    f"{self._place} refuses conditional writes (If-None-Match: *): {_first_line(error)}",
                    hint="a warehouse needs a store that knows them (docs/object-stores.md)",
                ) from None

        await self._call(f"write {name}", put)

    async def _is(self, name: str, data: bytes) -> bool:
        try:
            return await self._read(name, len(data)) == data
        except errors.UnexpectedAnswer:  # it is larger
            return False

    async def get(self, name: str, bytes_max: int) -> bytes | None:
        return await self._call(f"read {name}", lambda: self._read(name, bytes_max))

    async def _read(self, name: str, bytes_max: int) -> bytes | None:
        import obstore

        try:
            result = await obstore.get_async(self._store, name)
        except FileNotFoundError:
            return None
        if result.meta["size"] > bytes_max:
            raise errors.UnexpectedAnswer(f"{self._place}{name} has {result.meta['size']} bytes, more than {bytes_max}")
        return bytes(await result.bytes_async())

    async def exists(self, name: str) -> bool:
        return await self.size(name) is not None

    async def size(self, name: str) -> int | None:
        import obstore

        async def look() -> int | None:
            try:
                return int((await obstore.head_async(self._store, name))["size"])
            except FileNotFoundError:
                return None

        return await self._call(f"look for {name}", look)

    async def names_below(self, prefix: str) -> Sequence[str]:
        import obstore

        async def look() -> list[str]:
            names = []
            async for chunk in obstore.list(self._store, prefix or None, chunk_size=1000):
                names += [entry["path"] for entry in chunk]
            return sorted(names)

        return await self._call(f"list {prefix}", look)

    async def directly_in(self, folder: str) -> list[tuple[str, int]]:
        import obstore

        async def look() -> list[tuple[str, int]]:
            listing = await obstore.list_with_delimiter_async(self._store, folder)
            return [
                (entry["path"].rpartition("/")[2], int(entry["last_modified"].timestamp() * 1000))
                for entry in listing["objects"]
            ]

        return await self._call(f"list {folder}", look)

    async def remove(self, name: str) -> None:
        import obstore

        async def delete() -> None:
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                return

        await self._call(f"remove {name}", delete)

    async def _call(self, operation: str, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        async def guarded() -> Answer:
            import obstore

            try:
                return await attempt()
            except (OSError, ValueError, obstore.exceptions.BaseError) as error:
                raise self._explained(operation, error) from None

        return await self._caller.read(operation, guarded)

    def _explained(self, operation: str, error: Exception) -> errors.IcestreamError:
        """A failure of the store in our words."""
        import obstore

        exceptions = obstore.exceptions
        if isinstance(error, PermissionError | exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return errors.AccessDenied(
                f"{self._place} refuses access: {operation}",
                hint="check the keys of storage.iceberg_config.object_store, and what they allow",
            )
        if isinstance(error, ValueError):
            return errors.InvalidInput(f"{self._place}: {_first_line(error)}")
        return errors.StorageUnavailable(
            f"{self._place}: {cause_of(str(error))}{_first_line(error)}",
            hint="is the object store running, and are `endpoint` and `region` right?",
            is_ambiguous=True,
        )


def open_bucket(options: StoreOptions, kind: StoreKind, name: str, caller: StorageCaller) -> Bucket:
    from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

    config = store_options.obstore_config(options, kind)
    common: dict[str, Any] = {
        "client_options": {
            "allow_http": True,
            "timeout": timedelta(seconds=options.request_seconds),
            "connect_timeout": timedelta(seconds=options.request_seconds),
        },
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
            raise errors.InvalidInput(f"{kind} has no buckets", hint="use `s3`, `gcs`, `azure` or `memory`")
    return Bucket(cast("ObjectStore", store), caller, f"{kind} {name}/")


def cause_of(text: str) -> str:
    """Why no connection could be made, such as `Connection refused: `; empty for any other failure. obstore names the
    cause only in its page of debugging: the innermost words of what failed to connect."""
    _, is_connect, details = text.partition("kind: Connect,")
    words = _QUOTED.findall(details)
    return f"{words[-1][:_CAUSE_CHARACTERS_MAX]}: " if is_connect and words else ""


def _is_not_implemented(error: Exception) -> bool:
    """The store does not know what a header of the request asks for. obstore has no error of its own for it."""
    return _NOT_IMPLEMENTED in str(error)


def _first_line(error: Exception) -> str:
    """obstore adds a page of debugging behind it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
