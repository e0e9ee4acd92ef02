"""Which of the seed nodes a node is, and what that does to its directories and ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import limits
from icestream.errors import ConfigurationError
from icestream.settings import Settings, load
from icestream.settings.seed_place import check_alone_here, place_of, placed

SEEDS = ["0.0.0.0:7650", "0.0.0.0:7651", "0.0.0.0:7652"]


def settings_of(**tree: object) -> Settings:
    return Settings.model_validate({"meta_store": {"seed_nodes": SEEDS}, **tree})


def test_each_entry_gets_directories_ports_and_a_name_of_its_own() -> None:
    nodes = [placed(settings_of(), port, {}) for port in (7650, 7651, 7652)]
    assert [str(node.data_dir) for node in nodes] == [f"icestream-data/{port}" for port in (7650, 7651, 7652)]
    assert [node.node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert nodes[1].wal.base_path == Path("icestream-data/7651/wal")
    assert nodes[1].meta_store.data_dir == Path("icestream-data/7651/raft")
    assert nodes[1].local_socket == Path("icestream-data/7651/broker.sock")
    ports = [port for node in nodes for _, port in node.ports]
    assert len(set(ports)) == len(ports), "no two of them meet"
    assert [node.ports.native for node in nodes] == [6651, 6661, 6671]
    assert [place_of(node) for node in nodes] == SEEDS


def test_tables_are_everybodys_and_each_has_its_own_catalog_server() -> None:
    first, second = (placed(settings_of(), port, {}) for port in (7650, 7651))
    assert first.storage.iceberg_config.warehouse == second.storage.iceberg_config.warehouse
    assert first.storage.iceberg_config.warehouse.endswith("/icestream-data/warehouse")
    assert second.catalog_embedded
    assert second.catalog.uri == "http://127.0.0.1:8191"


def test_directories_that_are_set_are_shared_out() -> None:
    """The example of seed 004."""
    tree = {"meta_store": {"data_dir": "./danube-data/raft", "seed_nodes": SEEDS}}
    found = placed(Settings.model_validate(tree), 7652, {})
    assert found.meta_store.data_dir == Path("danube-data/raft/7652")
    wal = {"wal": {"base_path": "/fast/wal"}}
    found = placed(settings_of(storage={"iceberg_config": wal}), 7652, {})
    assert found.wal.base_path == Path("/fast/wal/7652")


def test_a_name_that_is_set_stays() -> None:
    loaded = load(None, {}, [f"meta_store.seed_nodes={','.join(SEEDS)}", "node.name=left"])
    assert placed(loaded.settings, 7651, loaded.origins).node.name == "left"
    loaded = load(None, {}, [f"meta_store.seed_nodes={','.join(SEEDS)}"])
    assert placed(loaded.settings, 7651, loaded.origins).node.name == "node-2"


def test_a_port_that_may_be_any_stays_so() -> None:
    assert placed(settings_of(ports={"native": 0}), 7651, {}).ports.native == 0


def test_ports_of_the_most_nodes_that_can_be_listed_do_not_meet() -> None:
    seeds = [f"0.0.0.0:{20_000 + number}" for number in range(limits.SEED_NODES_MAX)]
    settings = Settings.model_validate({"meta_store": {"seed_nodes": seeds}})
    ports = [port for number in range(len(seeds)) for _, port in placed(settings, 20_000 + number, {}).ports]
    assert len(set(ports)) == len(ports)


def test_what_no_entry_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="7650, 7651, 7652"):
        placed(settings_of(), 7653, {})
    with pytest.raises(ConfigurationError, match="there are none"):
        placed(Settings.default(), 7650, {})
    with pytest.raises(ConfigurationError, match="several seed nodes are on one host"):
        check_alone_here(settings_of())
    check_alone_here(Settings.default())


def test_one_node_on_each_machine_is_known_by_its_port_and_its_host() -> None:
    assert place_of(Settings.default()) == ""
    one_each = {"seed_nodes": ["a:7650", "b:7650", "c:7650"]}
    check_alone_here(Settings.model_validate({"meta_store": one_each}))
    told = Settings.model_validate({"meta_store": one_each, "node": {"advertised_host": "b"}})
    assert place_of(told) == "b:7650"
    stranger = Settings.model_validate({"meta_store": one_each, "node": {"advertised_host": "d"}})
    with pytest.raises(ConfigurationError, match="3 seed nodes have the port 7650"):
        place_of(stranger)
    with pytest.raises(ConfigurationError, match="no seed node has the port 7650"):
        place_of(Settings.model_validate({"meta_store": {"seed_nodes": ["a:1"]}}))
