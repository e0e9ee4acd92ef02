"""The ordered map under the state machine: `SortedDict`, as far as it is used here, with types."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from sortedcontainers import SortedDict  # type: ignore[import-untyped]  # it has no stubs: this module is its stub

K = TypeVar("K")
V = TypeVar("V")


class OrderedMap(Protocol[K, V]):
    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...

    def __getitem__(self, key: K) -> V: ...

    def __setitem__(self, key: K, value: V) -> None: ...

    def __delitem__(self, key: K) -> None: ...

    def get(self, key: K) -> V | None: ...

    def items(self) -> ItemsView[K, V]:
        """Iterates in the order of keys."""

    def peekitem(self, index: int) -> tuple[K, V]: ...

    def popitem(self, index: int) -> tuple[K, V]: ...

    def irange(self, minimum: K | None = None, *, inclusive: tuple[bool, bool] = (True, True)) -> Iterator[K]:
        """Iterates keys from `minimum` on, in order. The map must not change meanwhile."""


def ordered_map(pairs: Iterable[tuple[Any, Any]] = ()) -> OrderedMap[Any, Any]:
    ordered: OrderedMap[Any, Any] = SortedDict(pairs)
    return ordered
