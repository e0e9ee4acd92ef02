"""The files that are made from the settings, or for them: the example file and the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icestream.settings import KEYS, load, reference, value_at

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config" / "danube_broker_iceberg.yml"
_KEY_LINE = re.compile(r"(?P<indent> *)(?P<off># )?(?P<name>[a-z0-9_]+):(?: (?P<value>.*))?")


def keys_of_example() -> list[tuple[str, bool, str]]:
    """(path, whether it is switched off by `# `, the line above) of every key and section in the file."""
    keys = []
    stack: list[str] = []
    above = ""
    for line in EXAMPLE.read_text().splitlines():
        match = _KEY_LINE.fullmatch(line)
        if match is not None:
            depth = len(match["indent"]) // 2
            stack[depth:] = [match["name"]]
            path = ".".join(stack)
            keys.append((path, match["off"] is not None, above))
        above = line
    return keys


def test_the_example_file_loads() -> None:
    loaded = load(EXAMPLE)
    assert loaded.settings.wal.sync_mode == "periodic"
    assert loaded.settings.wal.base_path == Path("/var/lib/danube/wal")
    assert loaded.settings.catalog_embedded
    assert loaded.settings.meta_store.data_dir == Path("danube-data/raft")


def test_the_example_file_has_every_key_exactly_once() -> None:
    paths = [path for path, _, _ in keys_of_example()]
    assert sorted(paths) == sorted([*KEYS, *(section for section in KEYS.sections if section)])


def test_every_key_of_the_example_file_has_a_comment_above_it() -> None:
    for path, _, above in keys_of_example():
        assert re.fullmatch(r" *# [A-Z`0-9].*[.?]", above), f"{path} has no sentence above it"


def test_enabled_lines_of_the_example_file_match_what_loads() -> None:
    origins = load(EXAMPLE).origins
    switched_on = {path for path, off, _ in keys_of_example() if not off and path in KEYS}
    assert {path for path, origin in origins.items() if origin.kind == "file"} == switched_on


def test_disabled_lines_of_the_example_file_load_too(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    for name in {path.rpartition(".")[2] for path, off, _ in keys_of_example() if off}:
        text = re.sub(rf"^( *)# {name}:", rf"\1{name}:", text, flags=re.MULTILINE)
    file = tmp_path / "all.yml"
    file.touch(0o600)  # it has secrets in it
    file.write_text(text)
    assert {origin.kind for origin in load(file).origins.values()} == {"file"}


SEED_KEYS = ("storage.", "meta_store.", "data_dir")


@pytest.mark.parametrize("path", [path for path in KEYS if not path.startswith(SEED_KEYS)])
def test_beside_the_seeds_values_the_example_file_has_the_defaults(path: str) -> None:
    assert value_at(load(EXAMPLE).settings, path) == KEYS[path].default


def test_the_reference_in_docs_is_up_to_date() -> None:
    written = (ROOT / "docs" / "config.md").read_text()
    assert written == reference.markdown(), "run: icestream config reference --output markdown > docs/config.md"


def test_the_page_for_operators_names_every_port_that_a_broker_opens() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    named = {key: int(port) for port, key in re.findall(r"^\| (\d+) \| `(ports\.\w+)` \|", page, flags=re.MULTILINE)}
    unused = "raft"  # of a cluster: docs/cluster.md
    ports = {path: key.default for path, key in KEYS.items() if path.startswith("ports.")}
    assert named == {path: port for path, port in ports.items() if not path.endswith(unused)}


def test_the_reference_names_every_key_its_variable_and_its_default() -> None:
    text = reference.markdown()
    for key in KEYS.values():
        assert text.count(f"### `{key.path}`\n") == 1
        assert f"- Environment: `{key.env}`\n" in text
        assert key.description in text
    assert "- Default: `64MiB`" in text
    assert "- Default: `wal` below `data_dir`" in text


def test_the_reference_contains_no_path_of_this_machine() -> None:
    assert str(Path.cwd()) not in reference.markdown()
