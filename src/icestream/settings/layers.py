"""The three sources of settings, each read into a layer: values by key with their origin, and what was wrong with it.

A YAML file is read as nodes, not as Python objects, because only nodes know their lines; and only the scalars below
known keys are ever built, so a hostile file (aliases of aliases, tags that call constructors) has nothing to work on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from icestream import limits
from icestream.settings.keys import ENV_PREFIX, Key, Keys, Kind, has_secret
from icestream.settings.secret_source import secret_fault
from icestream.settings.setting_problems import Origin, SettingProblem, shown

# A Kubernetes service called `icestream…` puts these into the environment of every pod beside it: not settings.
_SERVICE_LINK = re.compile(
    r"ICESTREAM(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)=.*"
    r"|ICESTREAM(_[A-Z0-9]+)*_PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)
# Variables with other names (the first is that of the seeds), used if the key's own variable is not set.
OTHER_VARIABLES: Final = {"DANUBE_SUB_CURSOR_FLUSH_MS": "broker.cursor_flush_ms", "ICESTREAM_JARS": "pipeline.jars"}
# Variables of clients and commands, which are not settings: ICESTREAM_BROKER selects the broker of a command,
# ICESTREAM_TOKEN_FILE has the token of a client, ICESTREAM_CA_FILE and those behind it its TLS,
# ICESTREAM_ROLE_SECRET_FILE the secret of a process.
COMMAND_VARIABLES: Final = frozenset(
    {
        "ICESTREAM_BROKER", "ICESTREAM_TOKEN_FILE", "ICESTREAM_ROLE_SECRET_FILE",
        "ICESTREAM_CA_FILE", "ICESTREAM_CERTIFICATE_FILE", "ICESTREAM_KEY_FILE",
    }
)  # fmt: skip
_NULL_TAG: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class LayerEntry:
    """A value that some source sets."""

    key: Key
    value: object
    origin: Origin


@dataclass
class Layer:
    """The values that one source sets, and its problems."""

    entries: dict[str, LayerEntry] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)

    def add_text(self, key: Key, text: str, origin: Origin) -> None:
        try:
            self.entries[key.path] = LayerEntry(key, _value_of_text(key, text), origin)
        except _NotAllowed:
            self.problems.append(SettingProblem(key.path, f"must be {key.allowed}", origin, shown(text, key)))

    def add_unreadable(self, origin: Origin, reason: str) -> None:
        self.problems.append(SettingProblem("", reason, origin, hint="a settings file is one YAML document in UTF-8"))

    def add_unknown(self, path: str, keys: Keys, origin: Origin) -> None:
        self.problems.append(unknown(path, keys, origin))


class _NotAllowed(Exception):
    """The text or node has the wrong form for its key."""


def from_flags(flags: Iterable[str], keys: Keys) -> Layer:
    """Reads flags of the form `--set key.path=value`."""
    layer = Layer()
    for flag in flags:
        path, equals, text = flag.partition("=")
        path = path.strip()
        origin = Origin("flag", "--set")
        if not equals:
            layer.problems.append(SettingProblem("", f"{shown(flag)} is not of the form `key.path=value`", origin))
        elif path in keys:
            layer.add_text(keys[path], text, origin)
        else:
            layer.add_unknown(path, keys, origin)
    return layer


def from_env(env: Mapping[str, str], keys: Keys) -> Layer:
    """Reads variables of the form `ICESTREAM_A__B`; ignores all others."""
    layer = Layer()
    for name in sorted(env):
        origin = Origin("env", name)
        if name in OTHER_VARIABLES:
            if keys[OTHER_VARIABLES[name]].env not in env:
                layer.add_text(keys[OTHER_VARIABLES[name]], env[name], origin)
        elif name in keys.by_env:
            layer.add_text(keys.by_env[name], env[name], origin)
        elif name in COMMAND_VARIABLES:
            continue
        elif name.startswith(ENV_PREFIX) and not _SERVICE_LINK.fullmatch(f"{name}={env[name]}"):
            layer.add_unknown(name.removeprefix(ENV_PREFIX).lower().replace("__", "."), keys, origin)
    return layer


def from_file(path: Path, keys: Keys) -> Layer:
    """Reads a YAML file. A section without keys is the same as no section."""
    layer = Layer()
    try:
        root = yaml.compose(_read(path), yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        layer.add_unreadable(_at(path, error.problem_mark), f"not YAML: {error.problem or error.context}")
    except OSError as error:
        layer.add_unreadable(Origin("file", str(path)), f"cannot be read: {error.strerror}")
    except (yaml.YAMLError, ValueError) as error:
        layer.add_unreadable(Origin("file", str(path)), f"cannot be read: {str(error).splitlines()[0]}")
    except RecursionError:
        layer.add_unreadable(Origin("file", str(path)), "is nested too deeply")
    else:
        if root is not None:
            _walk(root, "", path, keys, layer)
    if fault := secret_fault(path):
        for name, entry in layer.entries.items():
            if has_secret(entry.key, entry.value):
                hint = f"chmod 600 {path}; or name a file with the secret: file:PATH"
                message = f"is a secret, and {path} {fault}"
                layer.problems.append(SettingProblem(name, message, entry.origin, hint=hint))
    return layer


def unknown(path: str, keys: Keys, origin: Origin) -> SettingProblem:
    """The problem of an unknown key, with the nearest known one."""
    if path in keys.sections:
        below = ", ".join(child.rpartition(".")[2] for child in keys.children(path))
        return SettingProblem(path, "is a section, not a key", origin, hint=f"set one of its keys: {below}")
    nearest = keys.nearest(path)
    name = f" ({keys[nearest].env})" if origin.kind == "env" and nearest in keys else ""
    return SettingProblem(path, f"unknown key; the nearest known one is {nearest}{name}", origin)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(limits.SETTINGS_FILE_BYTES_MAX + 1)
    if len(raw) > limits.SETTINGS_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {limits.SETTINGS_FILE_BYTES_MAX} bytes")
    return raw.decode("utf-8-sig")


def _at(path: Path, mark: yaml.Mark | None) -> Origin:
    return Origin("file", f"{path}:{mark.line + 1}" if mark is not None else str(path))


def _walk(node: yaml.Node, section: str, path: Path, keys: Keys, layer: Layer) -> None:
    """Reads a section, as deep as the tree of settings, whatever the depth of the file."""
    if node.tag == _NULL_TAG:
        return
    if not isinstance(node, yaml.MappingNode):
        origin = _at(path, node.start_mark)
        below = ", ".join(child.rpartition(".")[2] for child in keys.children(section))
        layer.problems.append(
            SettingProblem(section, "must be a section with keys", origin, hint=f"known keys: {below}")
        )
        return
    for line, name, child in _items(node):
        _take(f"{section}.{name}" if section else name, child, _at(path, line), path, keys, layer)


def _take(name: str, node: yaml.Node, origin: Origin, path: Path, keys: Keys, layer: Layer) -> None:
    if name in layer.entries:
        layer.problems.append(
            SettingProblem(name, "is set twice", origin, hint=f"first at {layer.entries[name].origin}")
        )
    elif name in keys:
        try:
            layer.entries[name] = LayerEntry(keys[name], _value_of_node(keys[name], node), origin)
        except _NotAllowed:
            value = shown(node.value, keys[name]) if isinstance(node, yaml.ScalarNode) else ""
            layer.problems.append(SettingProblem(name, f"must be {keys[name].allowed}", origin, value))
    elif name in keys.sections:
        _walk(node, name, path, keys, layer)
    else:
        layer.add_unknown(name, keys, origin)


def _items(node: yaml.MappingNode) -> Iterator[tuple[yaml.Mark, str, yaml.Node]]:
    for key, value in node.value:
        # A list or mapping as a key is never a known name; neither is a text with a dot, which would look like two.
        name = key.value.replace(".", "\\.") if isinstance(key, yaml.ScalarNode) else "?"
        yield key.start_mark, shown(name)[1:-1], value


def _value_of_text(key: Key, text: str) -> object:
    if key.kind is Kind.TEXT:
        return None if key.optional and text in ("null", "~") else text
    if key.kind is Kind.LIST and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _NotAllowed from None
    return None if node is None else _value_of_node(key, node)


def _value_of_node(key: Key, node: yaml.Node) -> object:
    if isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG:
        return [] if key.kind is Kind.LIST else None
    if key.kind is Kind.LIST:
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise _NotAllowed
        return [item.value for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise _NotAllowed
    return node.value if key.kind is Kind.TEXT else _scalar(node)


def _scalar(node: yaml.ScalarNode) -> object:
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        raise _NotAllowed from None
