"""Which broker a command means: one rule, and every command goes by it."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import errors, limits, testing
from icestream.cli.broker_location import (
    BROKER_VARIABLE,
    DEFAULT_ADDRESS,
    DEFAULT_SOCKET,
    Target,
    is_setting_variable,
    parse_location,
)
from icestream.cli.broker_settings import broker_settings
from icestream.cli.catalog_access import catalog_settings
from icestream.cli.commands import WIDE
from icestream.cli.contexts import Context, Contexts, contexts_file, read_contexts, write_contexts
from icestream.cli.lake_http import read_catalog_token
from icestream.cli.login_profile import write_login
from tests.support.command_line import icestream
from tests.unit.cli.test_commands import ALL, options

SOURCES = Path(__file__).parents[3] / "src" / "icestream"
CONTEXTS = Contexts({"production": Context("production", "icestream://10.0.0.1:6651", "/tokens")})


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither contexts nor environment variables of the account that runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name == BROKER_VARIABLE or is_setting_variable(name)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    """Every port is any free one: clients cannot find it by the defaults."""
    with testing.broker(storage="disk") as test_broker:
        yield test_broker


# --- what WHERE means -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7000", "icestream://127.0.0.1:7000"),
        ("icestream://example.org", "icestream://example.org:6651"),
        ("[::1]:7000", "icestream://[::1]:7000"),
        ("production", "icestream://10.0.0.1:6651"),
    ],
)
def test_an_address_or_the_context_that_has_it(text: str, address: str) -> None:
    location = parse_location(text, "--broker", CONTEXTS)
    assert (location.address, location.socket) == (address, None)
    assert (location.token_file is not None, location.chosen_by) == (text == "production", location.chosen_by)


def test_a_path_is_a_socket_or_the_data_dir_of_one(tmp_path: Path) -> None:
    (tmp_path / "icestream-data").mkdir()
    (tmp_path / "production").mkdir()
    for text, socket in (
        ("icestream-data", "icestream-data/broker.sock"),
        ("./production", "production/broker.sock"),  # with a slash it is no context
        ("elsewhere/any.sock", "elsewhere/any.sock"),
        (f"unix://{tmp_path}/x.sock", f"{tmp_path}/x.sock"),
    ):
        location = parse_location(text, "--broker", CONTEXTS)
        assert (location.socket, location.address) == (Path(socket), None)


@pytest.mark.parametrize("text", ["", "prodution", "::::", "unix://relative", "icestream://", "a b:1", "\udcff"])
def test_an_invalid_value_is_refused_with_valid_ones(text: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        parse_location(text, "--broker", CONTEXTS)
    assert caught.value.hint


# --- which rule counts ------------------------------------------------------------------------------------------------


def test_an_option_beats_the_variable_beats_the_context_beats_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "broker.yml"
    file.write_text(f"data_dir: {tmp_path}/filed\n")
    write_contexts(CONTEXTS.using("production"))
    environment = {BROKER_VARIABLE: "127.0.0.1:7001"}
    chosen = [
        Target("127.0.0.1:7000", file, ["data_dir=x"]).choose(environment),
        Target(None, file).choose(environment),
        Target(None, None, [f"data_dir={tmp_path}/set"]).choose(environment),
        Target(None, None, ["log.level=debug"]).choose(environment),  # says nothing of where a broker is
        Target().choose({}),
    ]
    assert [place.chosen_by for place in chosen] == [
        "--broker",
        "--config",
        "--set",
        BROKER_VARIABLE,
        "context production",
    ]
    assert [place.address for place in chosen[3:]] == ["icestream://127.0.0.1:7001", "icestream://10.0.0.1:6651"]
    assert [place.socket for place in chosen[1:3]] == [tmp_path / f"{name}/broker.sock" for name in ("filed", "set")]
    write_contexts(CONTEXTS)
    assert Target().choose({}).socket == DEFAULT_SOCKET
    assert Target().choose({}).address == DEFAULT_ADDRESS


def test_the_variable_is_not_a_setting(broker: testing.TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER_VARIABLE, broker.address)
    assert icestream("config", "show").code == 0


# Commands that ask a broker over its socket, its native port, its HTTP and its lake port.
ASKING = (
    "topic list", "sub list /default/known", "namespace list", "lake lag", "consume /default/known", "top --once",
    "produce /default/known", "cluster status", "config show --live", "context show", "doctor",
)  # fmt: skip


@pytest.mark.parametrize("line", ASKING)
@pytest.mark.parametrize("rule", ["--broker", BROKER_VARIABLE, "context", "ICESTREAM_DATA_DIR"])
def test_a_broker_on_any_port_is_found_by_every_rule(
    line: str, rule: str, broker: testing.TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = str(broker.node.settings.data_dir)
    icestream("topic", "create", "/default/known", "--broker", data_dir)
    words = line.split()
    if rule == "--broker":
        words += ["--broker", data_dir]
    elif rule == "context":
        assert icestream("context", "add", "here", data_dir, "--use").code == 0
    else:
        monkeypatch.setenv(rule, data_dir)
    ran = icestream(*words, "--output", "json", given=b"x\n")
    if line == "cluster status":
        assert "not part of a cluster" in ran.err
    else:
        assert ran.code == 0, ran.err


def test_doctor_checks_the_ports_of_the_running_broker(broker: testing.TestBroker) -> None:
    port = broker.address.rpartition(":")[2]
    for where in (str(broker.node.settings.data_dir), broker.address):
        rows = {row["check"]: row for row in icestream("doctor", "--broker", where, "--output", "json").document}
        assert port in rows["ports.native"]["finding"]
        assert "in use by an Icestream broker" in rows["ports.native"]["finding"]
        assert rows["broker"]["finding"].startswith("ready")


def test_an_unsupported_call_names_the_rule_that_chose_the_address(broker: testing.TestBroker) -> None:
    ran = icestream("namespace", "list", "--broker", broker.address)
    assert (ran.code, ran.out) == (4, "")
    assert "local socket, but --broker selected the address" in ran.err


@pytest.mark.parametrize("rule", ["--broker", BROKER_VARIABLE, "context gone", "default settings"])
def test_an_unreachable_broker_is_reported_with_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["topic", "list"]
    if rule == "--broker":
        words += ["--broker", "127.0.0.1:1"]
    elif rule == BROKER_VARIABLE:
        monkeypatch.setenv(BROKER_VARIABLE, "127.0.0.1:1")
    elif rule == "context gone":
        icestream("context", "add", "gone", "127.0.0.1:1", "--use")
    else:
        monkeypatch.setattr("icestream.cli.broker_location.DEFAULT_ADDRESS", "icestream://127.0.0.1:1")
    ran = icestream(*words)
    assert (ran.code, f"({rule})" in ran.err) == (11, True)


def test_a_data_dir_without_a_broker_never_leads_to_the_broker_at_the_default_ports(
    broker: testing.TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = broker.address.removeprefix("icestream://").rpartition(":")
    monkeypatch.setattr(
        "icestream.cli.broker_location.settings_address", lambda settings: broker.address
    )  # as on its default port
    file = tmp_path / "broker.yml"
    file.write_text(f"data_dir: {tmp_path}/nothing\n")
    named = ("--set", f"data_dir={tmp_path}/nothing")
    for words in (named, ("--config", str(file))):
        ran = icestream("topic", "create", "/default/oops", *words)
        assert (ran.code, f"no broker runs on data_dir {tmp_path}/nothing" in ran.err) == (11, True)
        shown = icestream("context", "show", *words, "--output", "json")
        assert (shown.code, shown.document["answers"]) == (11, False)
    with monkeypatch.context() as environment:
        environment.setenv("ICESTREAM_DATA_DIR", f"{tmp_path}/nothing")
        ran = icestream("topic", "create", "/default/oops")
        assert (ran.code, f"no broker runs on data_dir {tmp_path}/nothing" in ran.err) == (11, True)
    ports = ("--set", f"node.bind_host={host}", "--set", f"ports.native={port}")
    assert icestream("topic", "list", *named, *ports).code == 0  # an address that is named as well counts


LAKE_LINES = ("lake tables", "lake describe a.b", "lake rewind a.b --dry-run", "lake detach a.b --yes", "verify")


@pytest.mark.parametrize("rule", ["--set", "--config", "ICESTREAM_DATA_DIR"])
@pytest.mark.parametrize("line", ["topic list", *LAKE_LINES])
def test_a_data_dir_of_a_stopped_broker_leads_to_no_port_at_all(
    line: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = f"{tmp_path}/stopped"
    words: list[str] = []
    if rule == "--set":
        words = ["--set", f"data_dir={data_dir}"]
    elif rule == "--config":
        file = tmp_path / "broker.yml"
        file.write_text(f"data_dir: {data_dir}\n")
        words = ["--config", str(file)]
    else:
        monkeypatch.setenv(rule, data_dir)
    ran = icestream(*line.split(), *words)
    assert (ran.code, f"no broker runs on data_dir {data_dir}" in ran.err) == (11, True), ran.err
    if line in LAKE_LINES:  # a port that is named counts
        ran = icestream(*line.split(), *words, "--set", "ports.lake=1")
        assert (ran.code, "no response from http://127.0.0.1:1" in ran.err) == (11, True), ran.err


def test_a_foreign_catalog_needs_no_broker_unless_the_node_is_asked_too(tmp_path: Path) -> None:
    catalog = "storage.iceberg_config.catalog"
    target = Target(
        None, None, [f"data_dir={tmp_path}/stopped", f"{catalog}.type=rest", f"{catalog}.uri=http://127.0.0.1:1"]
    )
    assert broker_settings(target).catalog.uri == "http://127.0.0.1:1"
    with pytest.raises(errors.ConnectionLost, match="no broker runs on data_dir"):
        broker_settings(target, needs_node=True)


# --- contexts ---------------------------------------------------------------------------------------------------------


def test_from_adding_a_context_to_removing_it(tmp_path: Path) -> None:
    assert icestream("context", "list", "--output", "json").document == []
    assert icestream("context", "add", "a", "10.0.0.1:6651").code == 0
    assert icestream("context", "add", "b", "data", "--token-file", "tokens", "--use").code == 4  # no such path
    (tmp_path / "data").mkdir()
    assert icestream("context", "add", "b", "data", "--token-file", "tokens", "--use").code == 0
    assert icestream("context", "list", "--output", "json").document == [
        {"context": "a", "broker": "icestream://10.0.0.1:6651", "in_use": False},
        {"context": "b", "broker": f"{tmp_path}/data/broker.sock", "in_use": True},
    ]
    assert read_contexts().get("b").token_file == str(tmp_path / "tokens")
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert icestream("context", "use", "a").code == 0
    assert read_contexts().current == "a"
    assert icestream("context", "use").code == 4
    assert icestream("context", "use", "c").code == 4
    assert icestream("context", "use", "--none").code == 0
    assert icestream("context", "use", "b").code == 0
    assert icestream("context", "remove", "b").code == 0
    assert (read_contexts().current, list(read_contexts().entries)) == (None, ["a"])
    assert icestream("context", "remove", "b").code == 4


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "-a", "x" * 101, "ü"])
def test_an_ambiguous_context_name_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidInput):
        Contexts().with_entry(Context(name, "10.0.0.1:1"))


def test_the_number_of_contexts_is_bounded() -> None:
    full = Contexts({str(number): Context(str(number), "h:1") for number in range(limits.CONTEXTS_MAX)})
    with pytest.raises(errors.InvalidInput):
        full.with_entry(Context("one-more", "h:1"))
    assert full.with_entry(Context("7", "h:2")).get("7").broker == "h:2"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"contexts": []}', '{"contexts": {"a": {}}}', '{"contexts": {"a": {"broker": 1}}}', "\0",
     '{"contexts": {}, "current": "a"}', "[" * 100_000, '{"contexts": {"a": "b"}}'],
)  # fmt: skip
def test_an_invalid_contexts_file_is_an_error(text: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(text)
    ran = icestream("topic", "list")
    assert (ran.code, str(contexts_file()) in ran.err) == (3, True)


def test_show_prints_the_reason_and_the_location(broker: testing.TestBroker) -> None:
    icestream("context", "add", "here", str(broker.node.settings.data_dir), "--use")
    shown = icestream("context", "show", "--output", "json").document
    assert (shown["chosen_by"], shown["answers"], shown["node"]) == ("context here", True, "node-1")
    assert shown["native"] == broker.address
    assert shown["http"] == f"http://127.0.0.1:{broker.node.services.http.port}"
    gone = icestream("context", "show", "--broker", "127.0.0.1:1", "--output", "json")
    assert (gone.code, gone.document["answers"], json.loads(gone.err)["error"]) == (11, False, "connection_lost")


# --- hints ------------------------------------------------------------------------------------------------------------

FOREIGN = {"--packages", "--conf", "--add-modules"}  # options of Spark and Java


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the sources that is no docstring, with its place."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", node.value


def test_every_option_that_a_text_names_exists() -> None:
    known_options = (
        {word for command in ALL.values() for word in options(command)} | FOREIGN | {"--help", "--version", WIDE}
    )
    unknown = [
        (place, word)
        for place, text in texts()
        if " " in text.strip()  # a word alone is an argument for another program
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
        if word not in known_options
    ]
    assert unknown == []


def test_every_command_that_a_text_names_exists() -> None:
    groups = {" ".join(name.split()[:count]) for name in ALL for count in range(1, len(name.split()))}
    unknown = []
    for place, text in texts():
        for words in re.findall(r"`icestream ((?:[a-z-]+ ?)+)[^`]*`", text):
            parts = words.split()
            beginnings = [" ".join(parts[:count]) for count in range(1, len(parts) + 1)]
            if not any(name in ALL for name in beginnings) and beginnings[-1] not in groups:
                unknown.append((place, words))
    assert unknown == []


# --- logins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "is_sent"),
    [
        ([], True),
        (["node.bind_host=10.0.0.9", "node.allow_insecure_bind=true"], False),  # another host, in plain text
        (["node.bind_host=127.0.0.2"], False),  # another host, though on this machine
        (["storage.iceberg_config.catalog.type=rest", "storage.iceberg_config.catalog.uri=http://127.0.0.1:2"], False),
    ],
    ids=str,
)
def test_the_token_of_a_login_is_sent_to_the_catalog_of_its_broker_alone(
    sets: list[str], is_sent: bool, broker: testing.TestBroker
) -> None:
    target = Target(str(broker.node.settings.data_dir), None, [*sets, "ports.lake=1"])
    write_login(target.location, "token-of-the-login")
    settings = catalog_settings(target)
    token = settings.catalog.token
    assert (token is not None and token.get_secret_value() == "token-of-the-login") == is_sent


def test_a_token_of_the_settings_precedes_that_of_the_login(
    broker: testing.TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = str(broker.node.settings.data_dir)
    write_login(Target(data_dir).location, "token-of-the-login")
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("token-of-the-file\n")
    sets = ["ports.lake=1"]
    assert read_catalog_token(catalog_settings(Target(data_dir, None, [*sets, f"lake.token_file={tokens}"]))) == (
        "token-of-the-file"
    )
    monkeypatch.setenv("ICESTREAM_STORAGE__ICEBERG_CONFIG__CATALOG__TOKEN", "token-of-the-variable")
    assert read_catalog_token(catalog_settings(Target(data_dir, None, sets))) == "token-of-the-variable"


def test_a_login_at_another_broker_is_not_sent(broker: testing.TestBroker, tmp_path: Path) -> None:
    write_login(Target(str(tmp_path / "other")).location, "token-of-the-login")
    target = Target(str(broker.node.settings.data_dir), None, ["ports.lake=1"])
    assert read_catalog_token(catalog_settings(target)) is None
