"""R30: what earlier releases wrote is read by this one: tables, the log and the session log of a backup, restored.

The archives are of tests/support/release_backup.py. A release adds one; none is ever written again.
"""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from tests.support.command_line import icestream
from tests.support.free_ports import free_ports
from tests.support.lake_run import LakeRun
from tests.support.mqtt_client import EXPIRY_NEVER, V5, mqtt_client
from tests.support.release_backup import (
    IN_FLIGHT,
    MESSAGES,
    RELEASES,
    TOPICS,
    USER_PROPERTIES,
    numbers_of,
    topic_of,
)

pytestmark = pytest.mark.asyncio
ARCHIVES = sorted(RELEASES.glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
async def test_r30_sessions_and_tables_of_a_release_are_read_by_this_one(tmp_path: Path, archive: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (port,) = free_ports(1)
    data_dir = tmp_path / "data"
    options = [
        word for setting in ("mqtt.enable=true", f"ports.mqtt={port}", "mqtt.shards=1") for word in ("--set", setting)
    ]
    with LakeRun(data_dir, *options) as run:
        run.until_api()
        where = ("--to", str(tmp_path / "backups"), "--broker", str(data_dir))
        restored = await asyncio.to_thread(icestream, "backup", "restore", "latest", *where, "--everything")
        assert restored.code == 0, restored.out + restored.err
        async with mqtt_client(port, "reader", V5, is_clean_start=False, expiry_seconds=EXPIRY_NEVER) as reader:
            assert reader.connack is not None
            assert reader.connack.is_session_present
            assert await reader.payloads(MESSAGES // TOPICS) == [b"%d" % number for number in numbers_of(3)]
        async with mqtt_client(port, "holder", V5, is_clean_start=False, expiry_seconds=EXPIRY_NEVER) as holder:
            messages = await holder.messages(MESSAGES // TOPICS, acked=True)
            assert [message.payload for message in messages] == [b"%d" % number for number in numbers_of(4)]
            assert [message.is_duplicate for message in messages[: IN_FLIGHT + 1]] == [True] * IN_FLIGHT + [False]
        async with mqtt_client(port, "auditor") as auditor:
            assert await auditor.subscribe(("$replay/earliest/#", 1)) == (1,)
            rows = await auditor.messages(MESSAGES + 1, acked=True)
            plant = [message for message in rows if message.topic.endswith("/heat")]
            assert [(message.topic, message.payload) for message in plant] == [
                (topic_of(number), b"%d" % number) for number in range(MESSAGES)
            ]
            assert all(message.properties.user_properties() == USER_PROPERTIES for message in plant)
            assert await auditor.subscribe(("plant/state", 1)) == (1,)
            (state,) = await auditor.messages(1, acked=True)
            assert (state.payload, state.is_retained) == (b"on", True)
