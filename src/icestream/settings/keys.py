"""Every key of the tree, collected by walking the models once; used by the loader, error messages and the reference."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from icestream.settings.secret_source import is_reference
from icestream.settings.text import Text
from icestream.settings.tree import Settings
from icestream.settings.units import Quantity

ENV_PREFIX: Final = "ICESTREAM_"
SECRET_MASK: Final = "********"
_SECRET_NAME: Final = re.compile(r"secret|password|token|key|credential", re.IGNORECASE)


class Kind(Enum):
    """How a text from a file, the environment or a flag becomes a value."""

    TEXT = "taken as it is: a name such as `no` or `1.10` must not become something else"
    LIST = "a YAML list of texts, or texts separated by commas"
    SCALAR = "read as a YAML scalar: true, 100, 64MiB"


@dataclass(frozen=True)
class Key:
    """One leaf of the tree."""

    path: str
    kind: Kind
    allowed: str
    optional: bool
    secret: bool
    default: object
    default_words: str
    description: str
    online: bool
    quantity: Quantity | None

    @property
    def env(self) -> str:
        return env_name(self.path)

    def show(self, value: object) -> str:
        """The value as text for display; secrets are masked."""
        if value is None:
            return "none"
        if self.secret:
            return SECRET_MASK
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(masked, map(str, value)))}]"
        if self.quantity is not None and isinstance(value, int):
            return self.quantity.show(value)
        return str(value)

    def plain(self, value: object) -> object:
        """The value for JSON; secrets are masked."""
        if self.secret and value is not None:
            return SECRET_MASK
        if isinstance(value, tuple):
            return [masked(item) if isinstance(item, str) else item for item in value]
        return str(value) if isinstance(value, Path) else value


def masked(item: str) -> str:
    """An item of a list for display. Of one like `spark.hadoop.fs.s3a.secret.key=…`, whose name says that it is a
    secret, the value is masked (hazard 122)."""
    name, equals, _ = item.partition("=")
    return f"{name}={SECRET_MASK}" if equals and is_secret_name(name) else item


def has_secret(key: Key, value: object) -> bool:
    """Whether a value, as text or as read from YAML, is a secret itself and not a reference to one; or a list with one,
    such as `spark.authenticate.secret=…`."""
    if key.secret:
        return bool(value) and value not in ("null", "~", "[]") and not is_reference(value)
    if key.kind is not Kind.LIST:
        return False
    items = value.strip("[] ").split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return any(masked(item) != item for item in (str(item).strip(" \"'") for item in items))


def is_secret_name(name: str) -> bool:
    """Whether a setting of another program, such as Spark, holds a secret by its name."""
    return _SECRET_NAME.search(name) is not None


class Keys(Mapping[str, Key]):
    """All keys of a tree by their path, in the order of the tree."""

    def __init__(self, root: type[BaseModel]) -> None:
        self.sections: dict[str, str] = {}  # path and description
        self._keys = {key.path: key for key in self._walk(root, "")}
        self.by_env = {key.env: key for key in self._keys.values()}

    def __getitem__(self, path: str) -> Key:
        return self._keys[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def children(self, section: str) -> list[str]:
        """Paths of the keys and sections directly below a section (`""` is the root)."""
        paths = [*self._keys, *self.sections]
        return [path for path in paths if path and path.rpartition(".")[0] == section]

    def nearest(self, path: str) -> str:
        """The known path that was most likely meant: the right name in the wrong place, else the most similar path."""
        paths = [*self._keys, *filter(None, self.sections)]
        same_name = [other for other in paths if other.rpartition(".")[2] == path.rpartition(".")[2]]
        return difflib.get_close_matches(path, same_name or paths, n=1, cutoff=0.0)[0]

    def _walk(self, model: type[BaseModel], section: str) -> Iterator[Key]:
        self.sections[section] = (model.__doc__ or "").strip()
        for name, field in model.model_fields.items():
            path = f"{section}.{name}" if section else name
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from self._walk(field.annotation, path)
            else:
                yield _key(path, field)


def env_name(path: str) -> str:
    """The environment variable of a key."""
    return ENV_PREFIX + path.replace(".", "__").upper()


def value_at(settings: BaseModel, path: str) -> object:
    """The value of a key in a tree of settings."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


@dataclass(frozen=True)
class _Shape:
    """A field's annotation, taken apart."""

    base: Any
    marks: tuple[object, ...] = ()
    optional: bool = False


def _shape(annotation: Any, marks: tuple[object, ...] = (), optional: bool = False) -> _Shape:
    """Takes an annotation apart: its base type, marks, and whether None is allowed."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _shape(inner, (*marks, *more), optional)
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = (part for part in get_args(annotation) if part is not types.NoneType)
        return _shape(inner, marks, optional=True)
    return _Shape(annotation, marks, optional)


def _allowed(shape: _Shape) -> str:
    """Describes the allowed values, to complete the sentence "must be …"."""
    described = [mark for mark in shape.marks if isinstance(mark, Quantity | Text)]
    if described:
        words = described[0].allowed
    elif get_origin(shape.base) is Literal:
        words = " or ".join(map(str, get_args(shape.base)))
    elif get_origin(shape.base) is tuple:
        words = f"a list; each item {_allowed(_shape(get_args(shape.base)[0]))}"
    else:
        words = {bool: "true or false", str: "a text", SecretStr: "a text"}[shape.base]
    return f"{words}, or null" if shape.optional else words


def _kind(shape: _Shape) -> Kind:
    if get_origin(shape.base) is tuple:
        return Kind.LIST
    choices = get_args(shape.base) if get_origin(shape.base) is Literal else ()
    texts = shape.base in (str, Path, SecretStr) or (choices and all(isinstance(choice, str) for choice in choices))
    return Kind.TEXT if texts else Kind.SCALAR


def _is_secret(shape: _Shape) -> bool:
    if get_origin(shape.base) is tuple:
        return _is_secret(_shape(get_args(shape.base)[0]))
    return shape.base is SecretStr


def _key(path: str, field: FieldInfo) -> Key:
    shape = _shape(field.annotation, tuple(field.metadata))
    marks = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return Key(
        path=path,
        kind=_kind(shape),
        allowed=_allowed(shape),
        optional=shape.optional,
        secret=_is_secret(shape),
        default=None if field.is_required() else field.default,
        default_words=str(marks.get("derived", "")),
        description=field.description or "",
        online=marks.get("online") is True,
        quantity=next((mark for mark in shape.marks if isinstance(mark, Quantity)), None),
    )


KEYS: Final = Keys(Settings)
