"""Which of the seed nodes this node is, and how that changes its settings.

Several nodes on one machine share a settings file; each is started with a `--raft-port` of its own:

    its entry       the entry of `meta_store.seed_nodes` with that port
    directories     `data_dir`, and `meta_store.data_dir` and the log's if they are set: below each, a directory named
                    after the port. The warehouse is shared by all nodes
    other ports     10 more for each entry before its own, so that they never collide
    name            node-1, node-2, …, unless `node.name` is set

Without it the node is the entry with its `ports.raft`, and nothing else changes: one node on each machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icestream import limits
from icestream.errors import ConfigurationError
from icestream.settings.child_document import as_document
from icestream.settings.setting_problems import DEFAULT, Origin
from icestream.settings.text import split_address
from icestream.settings.tree import Settings


def own_seed_address(settings: Settings) -> str:
    """The entry of this node; empty without seed nodes. Raises ConfigurationError if no entry or several match."""
    seeds, port = settings.meta_store.seed_nodes, settings.ports.raft
    if not seeds:
        return ""
    own = (settings.node.advertised_host, settings.node.bind_host)
    candidates = [address for address in seeds if _port(address) == port]
    on_this_host = [address for address in candidates if _host(address) in own]
    if len(candidates) == 1 or len(on_this_host) == 1:
        return (on_this_host or candidates)[0]
    if not candidates:
        raise ConfigurationError(
            f"no seed node has the port {port}, which is `ports.raft` of this node",
            hint="name the one that it is: icestream serve --raft-port PORT, or set `ports.raft`",
        )
    raise ConfigurationError(
        f"{len(candidates)} seed nodes have the port {port}: which of them is this node?",
        hint="set `node.advertised_host` to the host of its entry",
    )


def settings_of_seed(settings: Settings, raft_port: int, origins: Mapping[str, Origin]) -> Settings:
    """The settings of the seed node with this Raft port, if several run on one machine. Raises ConfigurationError."""
    seeds = settings.meta_store.seed_nodes
    number = next((number for number, address in enumerate(seeds) if _port(address) == raft_port), None)
    if number is None:
        ports = ", ".join(str(_port(address)) for address in seeds) or "there are none"
        raise ConfigurationError(
            f"no seed node has the port {raft_port} (--raft-port); their ports: {ports}",
            hint="list every node of the cluster in `meta_store.seed_nodes`",
        )
    document = as_document(settings)
    _move_directories(document, settings, str(raft_port))
    shift = number * limits.SEED_PORT_SHIFT
    document["ports"] = {name: port + shift if port else 0 for name, port in settings.ports} | {"raft": raft_port}
    if settings.catalog.type == "embedded":
        document["storage"]["iceberg_config"]["catalog"].pop("uri", None)
    if origins.get("node.name", DEFAULT) == DEFAULT:
        document["node"]["name"] = f"node-{number + 1}"
    return Settings.model_validate(document)


def check_alone_here(settings: Settings) -> None:
    """Raises ConfigurationError if several entries are on one host and `--raft-port` was not used."""
    hosts = [_host(address) for address in settings.meta_store.seed_nodes]
    if len(hosts) > len(set(hosts)):
        raise ConfigurationError(
            "several seed nodes are on one host: which of them is started here?",
            hint=f"icestream serve --raft-port {_port(settings.meta_store.seed_nodes[0])} for the first of them",
        )


def _move_directories(document: dict[str, Any], settings: Settings, name: str) -> None:
    """Moves the node's directories below one named `name`."""
    below = settings.data_dir
    document["data_dir"] = str(below / name)
    paths = (
        (document["meta_store"], "data_dir", "raft"),
        (document["storage"]["iceberg_config"]["wal"], "base_path", "wal"),
    )
    for section, key, default_name in paths:
        if Path(section[key]) == below / default_name:
            del section[key]  # it follows data_dir
        else:
            section[key] = str(Path(section[key]) / name)


def _port(address: str) -> int:
    parts = split_address(address)
    return parts[1] if parts is not None else 0


def _host(address: str) -> str:
    parts = split_address(address)
    return parts[0] if parts is not None else ""
