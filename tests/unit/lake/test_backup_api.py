"""What the API tells about backups: of a real target, in the documents of its description."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from icestream.backup.archive_object import ArchiveHead, head_name
from icestream.backup.drill_report import DrillKey
from icestream.backup.stored_drills import open_drill_key, put_report
from icestream.catalog.tokens import Tokens
from icestream.lake.dispatch import build_lake_app
from icestream.processes.target_reports import TargetReports
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.asgi import AsgiClient, AsgiResponse
from tests.support.backup_world import ORDERS, BackupWorld, LocalSource, backup_world
from tests.support.local_broker import kept_link
from tests.unit.backup.test_drill import report_at

pytestmark = pytest.mark.asyncio


class BackupApi(NamedTuple):
    world: BackupWorld
    ask: AsgiClient

    async def get(self, path: str) -> AsgiResponse:
        return await self.ask("GET", f"/api/v1/{path}", None, {})

    async def answer(self, path: str) -> Any:
        answer = await self.get(path)
        assert answer.status == 200, answer
        return answer.json


@contextlib.asynccontextmanager
async def backup_api(folder: Path, *, has_target: bool = True) -> AsyncIterator[BackupApi]:
    async with backup_world(folder) as world, kept_link(world.node.settings.local_socket) as keeper:
        reports = TargetReports(
            lambda: world.target, LocalSource().chunks, InlineOffload(), folder
        )  # fmt: skip
        app = build_lake_app(
            keeper, "127.0.0.1", None, Tokens(), backup_reports=reports if has_target else None
        )  # fmt: skip
        yield BackupApi(world, AsgiClient(app))


async def prepare(world: BackupWorld) -> None:
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6)


async def test_backups_are_listed_page_by_page_with_their_state(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        assert await api.answer("backups") == {"items": [], "next": None}
        await prepare(api.world)
        ids = sorted([(await api.world.back_up()).id for _ in range(2)])
        await api.world.target.put("backups/29990101T000000Z-00000000/begin.json", b"{}")
        first = await api.answer("backups?limit=2")
        assert [item["id"] for item in first["items"]] == ids
        assert (first["items"][0]["state"], first["items"][0]["topics"]) == ("complete", 1)
        rest = await api.answer(f"backups?limit=2&after={first['next']}")
        assert ([item["state"] for item in rest["items"]], rest["next"]) == (["unfinished"], None)


async def test_a_backup_is_shown_with_its_topics_and_what_it_lacks(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        assert (await api.get("backups/latest")).status == 404
        await prepare(api.world)
        root = await api.world.back_up()
        for name in (root.id, "latest"):
            shown = await api.answer(f"backups/{name}")
            assert (shown["id"], shown["lacks"], shown["encrypted"]) == (root.id, [], False)
            (topic,) = shown["topic_list"]
            assert (topic["topic"], topic["table"]) == (str(ORDERS), "default.orders")
            assert (topic["tail_messages"], topic["shards"]) == (4, 1)
        assert (await api.get("backups/20000101T000000Z-00000000")).status == 404
        assert (await api.get("backups/..%2Fx")).status in (400, 404)


async def test_the_check_of_a_backup_names_a_missing_object(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        await prepare(api.world)
        root = await api.world.back_up()
        assert (await api.answer("backups/latest/verify"))["is_good"] is True
        name = next(row.path for row in await api.world.stored().rows_of(root.id) if row.role == "data")
        await api.world.target.remove(name)
        check = await api.answer("backups/latest/verify")
        assert (check["is_good"], check["finding_count"], check["findings"][0]["object"]) == (False, 1, name)


async def test_a_backup_with_too_many_objects_is_left_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.limits.API_BACKUP_OBJECTS_MAX", 1)
    async with backup_api(tmp_path) as api:
        await prepare(api.world)
        await api.world.back_up()
        assert (await api.get("backups/latest/verify")).status == 503


async def test_archives_are_shown_with_their_bases(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        assert (await api.answer("archives"))["items"] == []
        await prepare(api.world)
        root = await api.world.back_up()
        (node,) = root.nodes
        head = ArchiveHead(
            1, node.name, node.log_id, first_seq=1, seq=3, sha256="", end_lsn=node.lsn + 5, until_us=7_000_000,
            revision=1,
        )  # fmt: skip
        import msgspec

        await api.world.target.put(head_name(node.name, node.log_id), msgspec.json.encode(head))
        (archive,) = (await api.answer("archives"))["items"]
        assert (archive["objects"], archive["until_ms"], archive["bases"]) == (3, 7_000, [root.id])


async def test_drills_are_shown_with_the_check_of_their_signature(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        own = open_drill_key(tmp_path, SystemRandomness())
        await put_report(api.world.target, report_at(1_000), own)
        await put_report(api.world.target, report_at(2_000, "failed"), DrillKey(b"x" * 32))
        await api.world.target.put("drills/29990101T000000Z-x.json", b"{}")
        drills = (await api.answer("drills"))["items"]
        assert [(drill["outcome"], drill["signature"]) for drill in drills] == [
            ("passed", "own"), ("failed", "other"), (None, "invalid"),
        ]  # fmt: skip
        page = await api.answer("drills?limit=1")
        assert page["items"] == drills[:1]
        assert (await api.answer(f"drills?limit=1&after={page['next']}"))["items"] == drills[1:2]


async def test_restores_that_are_not_completed_are_shown(tmp_path: Path) -> None:
    async with backup_api(tmp_path) as api:
        await api.world.call("restore_begin", backup="b1", counters={}, is_required=True)
        answer = await api.world.call("restore_allocate", backup="b1", topic="/shop/orders")
        restores = (await api.answer("restores"))["items"]
        assert [(entry["topic"], entry["topic_id"], entry["state"]) for entry in restores] == [
            (None, None, "everything"), ("/shop/orders", answer["id"], "copying"),
        ]  # fmt: skip
        page = await api.answer("restores?limit=1")
        assert (await api.answer(f"restores?limit=1&after={page['next']}"))["items"] == restores[1:]


async def test_a_node_without_a_target_says_so(tmp_path: Path) -> None:
    async with backup_api(tmp_path, has_target=False) as api:
        answer = await api.get("backups")
        assert (answer.status, "no backup target" in answer.json["detail"]) == (400, True)
        assert (await api.get("restores")).status == 200
