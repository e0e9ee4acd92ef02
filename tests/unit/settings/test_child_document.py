"""Settings on their way to a child process: what arrives is what was sent."""

from __future__ import annotations

import pytest

from icestream.settings import Settings, load
from icestream.settings.child_document import as_document

REST = ("storage.iceberg_config.catalog.type=rest", "storage.iceberg_config.catalog.uri=http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("flags", "warehouse"),
    [
        ((), "file:/d/warehouse"),
        (REST, None),  # the other server has a default of its own, also behind a child's second look
        ((*REST, "storage.iceberg_config.warehouse=file:/w"), "file:/w"),
    ],
)
def test_a_child_reads_the_settings_that_it_was_sent(flags: tuple[str, ...], warehouse: str | None) -> None:
    settings = load(flags=["data_dir=/d", *flags]).settings
    assert settings.catalog.warehouse == warehouse
    assert Settings.model_validate(as_document(settings)) == settings
