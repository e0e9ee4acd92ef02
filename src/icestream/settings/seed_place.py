"""Which of the seed nodes this one is, and what that does to its settings.

Several nodes on one machine share a file of settings; each is started with a `--raft-port` of its own:

    its entry       the one of `meta_store.seed_nodes` with that port
    directories     `data_dir`, and `meta_store.data_dir` and the log's where they are set: below each, one named after
                    the port. The warehouse stays where it is: tables are everybody's
    other ports     10 more for each entry before its own, so that they never meet
    name            node-1, node-2, …, unless `node.name` is set

Without it the node is the entry with its `ports.raft`, and nothing else changes: one node on each machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icestream import limits
from icestream.errors import ConfigurationError
from icestream.settings.document import as_document
from icestream.settings.problems import DEFAULT, Origin
from icestream.settings.text import split_address
from icestream.settings.tree import Settings


def place_of(settings: Settings) -> str:
    """The entry of this node; empty without seed nodes. Raises ConfigurationError where none or several may be it."""
    seeds, port = settings.meta_store.seed_nodes, settings.ports.raft
    if not seeds:
        return ""
    own = (settings.node.advertised_host, settings.node.bind_host)
    candidates = [address for address in seeds if _port(address) == port]
    mine = [address for address in candidates if _host(address) in own]
    if len(candidates) == 1 or len(mine) == 1:
        return (mine or candidates)[0]
    if not candidates:
        raise ConfigurationError(
            f"no seed node has the port {port}, which is `ports.raft` of this node",
            hint="name the one that it is: icestream serve --raft-port PORT, or set `ports.raft`",
        )
    raise ConfigurationError(
        f"{len(candidates)} seed nodes have the port {port}: which of them is this node?",
        hint="set `node.advertised_host` to the host of its entry",
    )


def placed(settings: Settings, raft_port: int, origins: Mapping[str, Origin]) -> Settings:
    """The settings of the seed node with that port, where several run on one machine."""
    seeds = settings.meta_store.seed_nodes
    number = next((number for number, address in enumerate(seeds) if _port(address) == raft_port), None)
    if number is None:
        ports = ", ".join(str(_port(address)) for address in seeds) or "there are none"
        raise ConfigurationError(
            f"no seed node has the port {raft_port} (--raft-port); their ports: {ports}",
            hint="list every node of the cluster in `meta_store.seed_nodes`",
        )
    document = as_document(settings)
    _move(document, settings, str(raft_port))
    shift = number * limits.SEED_PORT_SHIFT
    document["ports"] = {name: port + shift if port else 0 for name, port in settings.ports} | {"raft": raft_port}
    if settings.catalog.type == "embedded":
        document["storage"]["iceberg_config"]["catalog"].pop("uri", None)
    if origins.get("node.name", DEFAULT) == DEFAULT:
        document["node"]["name"] = f"node-{number + 1}"
    return Settings.model_validate(document)


def check_alone_here(settings: Settings) -> None:
    """Raises ConfigurationError for entries on one host without a word on which of them is started."""
    hosts = [_host(address) for address in settings.meta_store.seed_nodes]
    if len(hosts) > len(set(hosts)):
        raise ConfigurationError(
            "several seed nodes are on one host: which of them is started here?",
            hint=f"icestream serve --raft-port {_port(settings.meta_store.seed_nodes[0])} for the first of them",
        )


def _move(document: dict[str, Any], settings: Settings, name: str) -> None:
    below = settings.data_dir
    document["data_dir"] = str(below / name)
    paths = (
        (document["meta_store"], "data_dir", "raft"),
        (document["storage"]["iceberg_config"]["wal"], "base_path", "wal"),
    )
    for section, key, usual in paths:
        if Path(section[key]) == below / usual:
            del section[key]  # it follows data_dir
        else:
            section[key] = str(Path(section[key]) / name)


def _port(address: str) -> int:
    parts = split_address(address)
    return parts[1] if parts is not None else 0


def _host(address: str) -> str:
    parts = split_address(address)
    return parts[0] if parts is not None else ""
