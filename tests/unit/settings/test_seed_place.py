"""Which of the seed nodes a node is, and what that does to its directories and ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import limits
from icestream.errors import ConfigurationError
from icestream.settings import Settings, load
from icestream.settings.seed_place import check_alone_here, own_seed_address, settings_of_seed

SEEDS = ["0.0.0.0:7650", "0.0.0.0:7651", "0.0.0.0:7652"]


def settings_of(**tree: object) -> Settings:
    return Settings.model_validate({"meta_store": {"seed_nodes": SEEDS}, **tree})


def test_each_entry_gets_directories_ports_and_a_name_of_its_own() -> None:
    nodes = [settings_of_seed(settings_of(), port, {}) for port in (7650, 7651, 7652)]
    assert [str(node.data_dir) for node in nodes] == [f"icestream-data/{port}" for port in (7650, 7651, 7652)]
    assert [node.node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert nodes[1].wal.base_path == Path("icestream-data/7651/wal")
    assert nodes[1].meta_store.data_dir == Path("icestream-data/7651/raft")
    assert nodes[1].local_socket == Path("icestream-data/7651/broker.sock")
    ports = [port for node in nodes for _, port in node.ports]
    assert len(set(ports)) == len(ports), "no two of them meet"
    assert [node.ports.native for node in nodes] == [6651, 6661, 6671]
    assert [own_seed_address(node) for node in nodes] == SEEDS


def test_tables_are_shared_and_each_node_has_its_catalog_server() -> None:
    first, second = (settings_of_seed(settings_of(), port, {}) for port in (7650, 7651))
    assert first.storage.iceberg_config.warehouse == second.storage.iceberg_config.warehouse
    assert first.storage.iceberg_config.warehouse.endswith("/icestream-data/warehouse")
    assert second.catalog_embedded
    assert second.catalog.uri == "http://127.0.0.1:8191"


def test_directories_that_are_set_are_shared_out() -> None:
    """The example of seed 004."""
    tree = {"meta_store": {"data_dir": "./danube-data/raft", "seed_nodes": SEEDS}}
    shared = settings_of_seed(Settings.model_validate(tree), 7652, {})
    assert shared.meta_store.data_dir == Path("danube-data/raft/7652")
    wal = {"wal": {"base_path": "/fast/wal"}}
    shared = settings_of_seed(settings_of(storage={"iceberg_config": wal}), 7652, {})
    assert shared.wal.base_path == Path("/fast/wal/7652")


def test_a_configured_name_is_kept() -> None:
    loaded = load(None, {}, [f"meta_store.seed_nodes={','.join(SEEDS)}", "node.name=left"])
    assert settings_of_seed(loaded.settings, 7651, loaded.origins).node.name == "left"
    loaded = load(None, {}, [f"meta_store.seed_nodes={','.join(SEEDS)}"])
    assert settings_of_seed(loaded.settings, 7651, loaded.origins).node.name == "node-2"


def test_an_arbitrary_port_stays_arbitrary() -> None:
    assert settings_of_seed(settings_of(ports={"native": 0}), 7651, {}).ports.native == 0


def test_ports_of_the_most_nodes_that_can_be_listed_do_not_meet() -> None:
    seeds = [f"0.0.0.0:{20_000 + number}" for number in range(limits.SEED_NODES_MAX)]
    settings = Settings.model_validate({"meta_store": {"seed_nodes": seeds}})
    ports = [port for number in range(len(seeds)) for _, port in settings_of_seed(settings, 20_000 + number, {}).ports]
    assert len(set(ports)) == len(ports)


def test_a_node_without_a_seed_entry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="7650, 7651, 7652"):
        settings_of_seed(settings_of(), 7653, {})
    with pytest.raises(ConfigurationError, match="there are none"):
        settings_of_seed(Settings.default(), 7650, {})
    with pytest.raises(ConfigurationError, match="several seed nodes are on one host"):
        check_alone_here(settings_of())
    check_alone_here(Settings.default())


def test_one_node_per_machine_is_identified_by_port_and_host() -> None:
    assert own_seed_address(Settings.default()) == ""
    one_each = {"seed_nodes": ["a:7650", "b:7650", "c:7650"]}
    check_alone_here(Settings.model_validate({"meta_store": one_each}))
    settings = Settings.model_validate({"meta_store": one_each, "node": {"advertised_host": "b"}})
    assert own_seed_address(settings) == "b:7650"
    stranger = Settings.model_validate({"meta_store": one_each, "node": {"advertised_host": "d"}})
    with pytest.raises(ConfigurationError, match="3 seed nodes have the port 7650"):
        own_seed_address(stranger)
    with pytest.raises(ConfigurationError, match="no seed node has the port 7650"):
        own_seed_address(Settings.model_validate({"meta_store": {"seed_nodes": ["a:1"]}}))
