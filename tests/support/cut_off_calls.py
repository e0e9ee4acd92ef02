"""A process that ends at one of its calls to the outside: of a broker, of a catalog, of a store. Test cases are made
from the list of calls that a whole run makes: each of them, before it happens and after it.

Behind the end every other call fails too, as nothing of a killed process goes on: no handler of errors, no thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from tests.support.backup_world import BackupWorld, Crash

Service = TypeVar("Service")


class CutOffPoint(NamedTuple):
    """`number`: of the call, counted from 0."""

    number: int
    is_before: bool


class CutOffCalls:
    """Counts and names calls, and ends the process at a point. Without one it counts only."""

    def __init__(self, point: CutOffPoint | None = None, name: str = "") -> None:
        """`name`: of the first call that does not happen."""
        self.names: list[str] = []
        self._name = name
        self._point = point
        self._is_dead = False

    def points(self) -> list[CutOffPoint]:
        """All points of the calls that were made."""
        return [CutOffPoint(number, is_before) for number in range(len(self.names)) for is_before in (True, False)]

    def _begin(self, name: str) -> int:
        if self._is_dead:
            raise Crash
        number = len(self.names)
        self.names.append(name)
        self._strike(CutOffPoint(number, is_before=True), name)
        return number

    def _end(self, number: int) -> None:
        self._strike(CutOffPoint(number, is_before=False))

    def _strike(self, point: CutOffPoint, name: str | None = None) -> None:
        if self._is_dead or point == self._point or name == self._name:
            self._is_dead = True
            raise Crash

    def function(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A function whose calls are counted; calls of a broker by the name of the call."""

        async def counted(*arguments: Any, **options: Any) -> Any:
            number = self._begin(f"{name} {arguments[0]}" if arguments else name)
            result = await call(*arguments, **options)
            self._end(number)
            return result

        return counted

    def plain_function(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """As `function`, of what returns its result at once."""

        def counted(*arguments: Any) -> Any:
            number = self._begin(name)
            result = call(*arguments)
            self._end(number)
            return result

        return counted

    def of(self, service: Service, *methods: str) -> Service:
        """The same service, whose methods of these names are counted, and `chunks`, which yields."""
        return _CountedService(self, service, methods)  # type: ignore[return-value]

    def chunks(self, read: Callable[[str], Iterator[bytes]], name: str) -> Iterator[bytes]:
        number = self._begin(f"chunks {name}")
        for chunk in read(name):
            if self._is_dead:
                raise Crash
            yield chunk
        self._end(number)


class _CountedService:
    def __init__(self, calls: CutOffCalls, service: Any, methods: tuple[str, ...]) -> None:
        self._calls = calls
        self._service = service
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._service, name)
        if name == "chunks":
            return lambda path: self._calls.chunks(attribute, path)
        if name not in self._methods:
            return attribute
        if inspect.iscoroutinefunction(attribute):
            return self._calls.function(name, attribute)
        return self._calls.plain_function(name, attribute)


WRITER_CALLS = ("size", "names", "write", "copy", "write_tail", "make_durable", "files_below", "remove")
TARGET_CALLS = ("put_new", "put", "adopt", "get", "size", "names", "remove", "keep_names")
CATALOG_CALLS = ("load", "commit")


class TargetOf:
    """Gives a world a counted target while the context is open."""

    def __init__(self, world: BackupWorld, calls: CutOffCalls) -> None:
        self._world = world
        self._plain = world.target
        self._calls = calls

    def __enter__(self) -> None:
        self._world.target = self._calls.of(self._plain, *TARGET_CALLS)

    def __exit__(self, *_: object) -> None:
        self._world.target = self._plain
