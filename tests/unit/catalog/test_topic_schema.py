"""The envelope of a topic's table: what docs/lake.md says of it, and how a table without it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icestream import errors
from icestream.catalog.topic_rules import topic_schema

PAGE = (Path(__file__).parents[3] / "docs" / "lake.md").read_text(encoding="utf-8")


def test_the_page_lists_the_columns_that_a_table_must_have() -> None:
    section = PAGE.split("## How a topic gets its table")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)[^|]*` \|$", section, re.MULTILINE)
    fields = topic_schema.new_schema()["fields"]
    assert [name for name, _ in listed] == [field["name"] for field in fields]
    assert dict(listed) == topic_schema.COLUMNS


def test_a_column_beside_the_envelope_must_do_without_values() -> None:
    schema = topic_schema.new_schema()
    more = {"id": 300, "name": "more", "type": "long", "required": False}
    topic_schema.check_bindable({**schema, "fields": [*schema["fields"], more]})
    with pytest.raises(errors.InvalidInput, match="column more is required, but messages do not have it") as refused:
        topic_schema.check_bindable({**schema, "fields": [*schema["fields"], {**more, "required": True}]})
    assert "make it optional" in refused.value.hint


@pytest.mark.parametrize("change", ["drop", "type"])
def test_an_incompatible_table_is_refused_with_a_hint(change: str) -> None:
    schema = topic_schema.new_schema()
    topic_schema.check_bindable(schema)
    if change == "drop":
        del schema["fields"][0]
    else:
        schema["fields"][0]["type"] = "string"
    with pytest.raises(errors.InvalidInput, match="column shard") as refused:
        topic_schema.check_bindable(schema)
    assert "`icestream lake recreate TOPIC`" in refused.value.hint
