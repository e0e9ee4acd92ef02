"""What can be done: the actions that rules name, and the groups that stand for several of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from icestream import errors


class Action(Enum):
    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    TABLE_READ = "table-read"
    TABLE_WRITE = "table-write"
    QUERY = "query"
    BACKUP = "backup"
    RESTORE = "restore"
    MAINTAIN = "maintain"
    ADMIN = "admin"


_READ: Final = frozenset({Action.CONSUME, Action.DESCRIBE, Action.TABLE_READ, Action.QUERY, Action.BACKUP})
_WRITE: Final = frozenset({Action.PRODUCE, Action.DESCRIBE})
GROUPS: Final[dict[str, frozenset[Action]]] = {
    "read": _READ,
    "write": _WRITE,
    "all": frozenset(Action) - {Action.ADMIN},
}


def parse_action(name: str) -> Action:
    """The action of this name. Raises InvalidInput."""
    (action,) = parse_actions([name]) if name not in GROUPS else (None,)
    if action is None:
        raise errors.InvalidInput(f"{name} is a group of actions", hint="name one action")
    return action


def parse_actions(names: Iterable[str]) -> frozenset[Action]:
    """The actions of a rule; names of actions and of groups. Raises InvalidInput."""
    actions: set[Action] = set()
    for name in names:
        action = next((action for action in Action if action.value == name), None)
        if action is None and name not in GROUPS:
            choices = ", ".join([*GROUPS, *(action.value for action in Action)])
            raise errors.InvalidInput(f"{name[:100]!r} is not an action", hint=f"actions: {choices}")
        actions |= GROUPS[name] if action is None else {action}
    if not actions:
        raise errors.InvalidInput("a rule without an action", hint="for example read, write, produce, consume")
    return frozenset(actions)
