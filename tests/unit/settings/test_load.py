"""File < environment < flags, origins, and what is said about mistakes in each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from icestream import errors, limits
from icestream.settings import KEYS, SettingProblem, examine, load
from icestream.settings.keys import Key, Keys
from icestream.settings.layers import from_env
from icestream.settings.setting_problems import refusal, shown

WAL = "storage.iceberg_config.wal"
ENV_WAL = "ICESTREAM_STORAGE__ICEBERG_CONFIG__WAL"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.yml"


def problems_in(file: Path, text: str | bytes) -> list[SettingProblem]:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(examine(file)[1])


def test_flags_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("node: {name: file}\nlog:\n  level: error\n  format: json\nports:\n  mqtt: 1884\n")
    env = {"ICESTREAM_LOG__LEVEL": "debug", "ICESTREAM_NODE__NAME": "env", "HOME": "/home/x"}
    loaded = load(file, env, ["node.name=flag"])
    assert loaded.settings.node.name == "flag"
    assert loaded.settings.log.level == "debug"
    assert loaded.settings.log.format == "json"
    assert {path: str(loaded.origins[path]) for path in ("node.name", "log.level", "log.format", "ports.mqtt")} == {
        "node.name": "flag --set",
        "log.level": "env ICESTREAM_LOG__LEVEL",
        "log.format": f"file {file}:4",
        "ports.mqtt": f"file {file}:6",
    }
    assert str(loaded.origins["ports.lake"]) == "default"
    assert set(loaded.origins) == set(KEYS)


def test_the_seeds_variable_sets_how_often_cursors_are_written() -> None:
    loaded = load(env={"DANUBE_SUB_CURSOR_FLUSH_MS": "250"})
    assert loaded.settings.broker.cursor_flush_ms == 250


def test_the_later_flag_wins() -> None:
    assert load(flags=["log.level=debug", "log.level=error"]).settings.log.level == "error"


def test_an_overridden_value_need_not_be_valid(file: Path) -> None:
    file.write_text("log: {level: loud}")
    assert load(file, flags=["log.level=info"]).settings.log.level == "info"


@pytest.mark.parametrize(
    "text", ["", "\n# nothing\n", "storage:\n", "storage:\n  iceberg_config:\n    wal: ~\n", "---\n"]
)
def test_empty_files_and_sections_set_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert {origin.kind for origin in load(file).origins.values()} == {"default"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("METRICS__ENABLE", "false", False),
        ("METRICS__ENABLE", "no", False),
        ("PORTS__MQTT", "1999", 1999),
        ("STORAGE__ICEBERG_CONFIG__WAL__MAX_FILE_SIZE", "128MiB", 128 * limits.MIB),
        ("STORAGE__ICEBERG_CONFIG__WAL__SYNC_INTERVAL_MS", "2s", 2000),
        ("STORAGE__ICEBERG_CONFIG__WAL__QUOTA", "", None),
        ("STORAGE__ICEBERG_CONFIG__WAL__QUOTA", "null", None),
        ("STORAGE__ICEBERG_CONFIG__WAL__SYNC_MODE", "none", "none"),
        ("STORAGE__ICEBERG_CONFIG__NAMESPACE", "no", "no"),
        ("STORAGE__ICEBERG_CONFIG__NAMESPACE", "1.10", "1.10"),
        ("STORAGE__ICEBERG_CONFIG__NAMESPACE", "null", None),
        ("NODE__NAME", "null", "null"),
        ("META_STORE__SEED_NODES", "a:1, b:2", ("a:1", "b:2")),
        ("META_STORE__SEED_NODES", '["a:1", b:2]', ("a:1", "b:2")),
        ("META_STORE__SEED_NODES", "", ()),
    ],
)
def test_texts_of_the_environment_and_of_flags_become_values(name: str, text: str, expected: object) -> None:
    key = KEYS.by_env[f"ICESTREAM_{name}"]
    for loaded in (load(env={key.env: text}), load(flags=[f"{key.path}={text}"])):
        value: object = loaded.settings
        for part in key.path.split("."):
            value = getattr(value, part)
        assert value == expected


def test_names_in_a_file_are_not_changed(file: Path) -> None:
    file.write_text(
        "storage:\n  iceberg_config:\n    namespace: no\nbackup: {iceberg: {table: 1.10, manifest_prefix: 007}}\n"
    )
    settings = load(file).settings
    assert settings.storage.iceberg_config.namespace == "no"
    assert (settings.backup.iceberg.table, settings.backup.iceberg.manifest_prefix) == ("1.10", "007")


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        (f"{WAL}.sync_mod", f"{WAL}.sync_mode"),
        (f"{WAL}.max_filesize", f"{WAL}.max_file_size"),
        ("storge.type", "storage.type"),
        ("storage.wal.sync_mode", f"{WAL}.sync_mode"),
        ("wal.base_path", f"{WAL}.base_path"),
        ("ports.lak", "ports.lake"),
        ("logs", "log"),
        ("sync_mode", f"{WAL}.sync_mode"),
        ("seed_nodes", "meta_store.seed_nodes"),
        ("storage.warehouse", "storage.iceberg_config.warehouse"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(file: Path, path: str, nearest: str) -> None:
    words = f"unknown key; the nearest known one is {nearest}"
    (flag,) = examine(flags=[f"{path}=1"])[1]
    assert (flag.path, flag.message, str(flag.origin)) == (path, words, "flag --set")
    name = "ICESTREAM_" + path.replace(".", "__").upper()
    (env,) = examine(env={name: "1"})[1]
    assert (env.path, str(env.origin)) == (path, f"env {name}")
    assert env.message.startswith(words)


def test_an_unknown_key_in_a_file_is_named_with_its_path_and_line(file: Path) -> None:
    (problem,) = problems_in(file, "log:\n  level: info\nstorage:\n  iceberg_config:\n    wal:\n      sync_mod: x\n")
    assert problem.path == f"{WAL}.sync_mod"
    assert str(problem.origin) == f"file {file}:6"
    assert problem.message == f"unknown key; the nearest known one is {WAL}.sync_mode"


def test_an_unknown_variable_is_answered_with_the_name_of_the_nearest_one() -> None:
    (problem,) = examine(env={f"{ENV_WAL}__SYNC_MOD": "always"})[1]
    assert f"{ENV_WAL}__SYNC_MODE" in problem.message


def test_names_in_lower_case_are_not_silently_ignored() -> None:
    (problem,) = examine(env={"ICESTREAM_log__level": "debug"})[1]
    assert "ICESTREAM_LOG__LEVEL" in problem.message


def test_kubernetes_service_variables_are_not_settings() -> None:
    links = {
        "ICESTREAM_SERVICE_HOST": "10.0.0.1",
        "ICESTREAM_SERVICE_PORT_MQTT": "1883",
        "ICESTREAM_LAKE_SERVICE_PORT": "8181",
        "ICESTREAM_PORT": "tcp://10.0.0.1:6650",
        "ICESTREAM_PORT_6650_TCP_ADDR": "10.0.0.1",
    }
    assert from_env(links, KEYS).problems == []
    assert len(from_env({"ICESTREAM_LAKE_PORT": "8182"}, KEYS).problems) == 1


def test_all_problems_of_all_sources_are_reported_at_once(file: Path) -> None:
    file.write_text(
        "storage:\n  type: disk\n  iceberg_config:\n    wal:\n      max_file_size: 64KiB\nnode:\n  bind_host: 0.0.0.0\n"
    )
    env = {"ICESTREAM_LOG__LEVEL": "loud", "ICESTREAM_NOTHING": "1"}
    flags = ["ports.mqtt=high", "ports.native=6650", "log=1", "no-equals"]
    loaded, problems = examine(file, env, flags)
    assert loaded is None
    assert {(problem.path, str(problem.origin)) for problem in problems} == {
        ("storage.type", f"file {file}:2"),
        (f"{WAL}.max_file_size", f"file {file}:5"),
        ("node.bind_host", f"file {file}:7"),
        ("log.level", "env ICESTREAM_LOG__LEVEL"),
        ("nothing", "env ICESTREAM_NOTHING"),
        ("ports.mqtt", "flag --set"),
        ("ports.native", "flag --set"),
        ("log", "flag --set"),
        ("", "flag --set"),
    }
    with pytest.raises(errors.ConfigurationError) as caught:
        load(file, env, flags)
    assert caught.value.message.startswith("9 settings cannot be used:")
    assert all(str(problem) in caught.value.message for problem in problems)


def test_a_problem_names_value_origin_and_what_is_allowed() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        load(env={"ICESTREAM_LOG__LEVEL": "loud"})
    assert caught.value.message == (
        "log.level = 'loud' (env ICESTREAM_LOG__LEVEL): must be debug or info or warning or error"
    )
    assert caught.value.hint


def test_a_wrong_key_is_not_blamed_on_derived_ones() -> None:
    problems = examine(flags=["ports.lake=99999"])[1]
    assert [problem.path for problem in problems] == ["ports.lake"]
    assert [problem.path for problem in examine(flags=["data_dir="])[1]] == ["data_dir"]


def test_a_rule_is_not_checked_for_an_invalid_key() -> None:
    problems = examine(flags=[f"{WAL}.max_file_size=lots", f"{WAL}.max_message_bytes=64MiB"])[1]
    assert [problem.path for problem in problems if "does not hold" in problem.message] == []
    assert f"{WAL}.max_file_size" in {problem.path for problem in problems}


def test_a_default_that_does_not_work_out_is_reported_and_not_hidden() -> None:
    problems = examine(flags=[f"data_dir={'a/' * 600}"])[1]
    warehouse = "storage.iceberg_config.warehouse"
    assert {problem.path for problem in problems} == {warehouse, "storage.iceberg_config.catalog.warehouse"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("a: b: c", "not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("*nothing", "not YAML"),
        ("- 1\n- 2\n", "must be a section with keys"),
        ("just text", "must be a section with keys"),
        ("log: loud", "must be a section with keys"),
        ("log: [level]", "must be a section with keys"),
        ("log: {level: [info]}", "must be debug or info"),
        ("log: {level: {a: b}}", "must be debug or info"),
        ("log: {level: ~}", "must be debug or info"),
        ("log: {level: info, level: debug}", "is set twice"),
        ("log.level: debug", "unknown key"),
        ("? [log]\n: debug", "unknown key"),
        ("<<: {log: {level: debug}}", "unknown key"),
        ("1: 2", "unknown key"),
        ("ports: {mqtt: 2024-13-45}", "must be a whole number"),
        ("ports: {mqtt: !!python/object/apply:os.system [id]}", "must be a whole number"),
        ("ports: {mqtt: !!python/name:os.system x}", "must be a whole number"),
        ("ports: {mqtt: !!int x}", "must be a whole number"),
        ("ports: {mqtt: true}", "must be a whole number"),
        ("ports: {mqtt: 1883.0}", "must be a whole number"),
        ("metrics: {enable: 1}", "must be true or false"),
        ("metrics: {enable: 'true'}", "must be true or false"),
        ("meta_store: {seed_nodes: a:1}", "must be a list"),
        ("meta_store: {seed_nodes: [[a:1]]}", "must be a list"),
        ("&a [*a]", "must be a section"),
        ("[" * 5000, "nested too deeply"),
        (b"\xff\xfe\xfd", "cannot be read"),
        (b"log: \x00", "cannot be read"),
        (b"#" * (limits.SETTINGS_FILE_BYTES_MAX + 1), "larger than"),
    ],
)
def test_files_that_are_refused(file: Path, text: str | bytes, words: str) -> None:
    (problem,) = problems_in(file, text)
    assert words in problem.message
    assert str(problem.origin).startswith(f"file {file}")


def test_an_alias_bomb_is_refused_without_being_spelled_out(file: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    problems = problems_in(file, "\n".join([*lines, "log: {level: *i}", "meta_store: {seed_nodes: *i}"]))
    assert len(problems) == 11
    assert sum(len(str(problem)) for problem in problems) < 10_000


def test_a_section_that_contains_itself_is_refused(file: Path) -> None:
    problems = problems_in(file, "storage: &s\n  iceberg_config: *s\n  type: memory\n")
    assert {problem.path for problem in problems} == {
        "storage.iceberg_config.iceberg_config",
        "storage.iceberg_config.type",
    }


@pytest.mark.parametrize("make", ["missing", "directory"])
def test_an_unreadable_file_is_a_configuration_error(tmp_path: Path, make: str) -> None:
    path = tmp_path / "nowhere.yml" if make == "missing" else tmp_path
    with pytest.raises(errors.ConfigurationError, match="cannot be read") as caught:
        load(path)
    assert str(path) in caught.value.message


TOKENS = [
    "storage",
    "type",
    "iceberg",
    ":",
    " ",
    "\n",
    "  ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
    "!!int",
    "64MiB",
    "~",
    "'",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from([*TOKENS, "log", "level", "wal", "ports", "#"])).map("".join)))
def test_any_text_loads_or_is_a_configuration_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    loaded, problems = examine(file)
    assert (loaded is None) == bool(problems)


@given(st.sampled_from(list(KEYS)), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_value_of_any_key_loads_or_is_a_configuration_error(path: str, text: str) -> None:
    for loaded, problems in (examine(flags=[f"{path}={text}"]), examine(env={KEYS[path].env: text})):
        assert (loaded is None) == bool(problems)
        assert all(str(problem).isprintable() for problem in problems)


class Toy(BaseModel):
    """A tree with a secret: the real one has none yet."""

    password: SecretStr = Field(default=SecretStr("hunter2"), description="A secret.")
    token: SecretStr | None = None


def toy_key(name: str) -> Key:
    return Keys(Toy)[name]


def test_secrets_are_never_shown() -> None:
    key = toy_key("password")
    assert key.secret
    assert toy_key("token").secret
    for text in (key.show(SecretStr("hunter2")), str(key.plain(SecretStr("hunter2"))), shown("hunter2", key)):
        assert text == "********"
    assert toy_key("token").plain(None) is None


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    (problem,) = examine(flags=["storage.iceberg_config.catalog.uri=http://user:hunter2@localhost:8181"])[1]
    assert "hunter2" not in str(problem)
    assert "without user name and password" in problem.message


def test_a_single_problem_is_its_own_message_with_its_own_hint() -> None:
    error = refusal([SettingProblem("a.b", "must be x", hint="do y")])
    assert (error.message, error.hint) == ("a.b: must be x", "do y")


@pytest.mark.parametrize("name", ["ICESTREAM_BROKER", "ICESTREAM_TOKEN_FILE"])
def test_variables_of_clients_and_commands_are_no_settings(name: str) -> None:
    layer = from_env({name: "x"}, KEYS)
    assert (layer.entries, layer.problems) == ({}, [])
