"""What people and programs see of MQTT on a node: sessions, subscriptions, retained messages, topics and routes.

Each listing is a page of rows (admin_api/mqtt_api.py) with plain values. Everything is computed when it is asked for;
nothing is kept for it but the marks and topics of the feeds. A listing looks at its items in slices of the loop, so
that one of many sessions does not delay others; what changes meanwhile is seen or not.

    cursor    of a page: the numbers of its last row, joined by dots. Client ids and topics have no bound that a URL
              could keep
    bound     a page has so many rows, and API_PAGE_BYTES_MAX: client ids and topics have up to 64 KiB
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from heapq import nsmallest
from operator import itemgetter
from typing import NamedTuple, TypeVar

import msgspec

from icestream import errors, limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import Listing, PageRequest
from icestream.broker.mqtt.connected_client import ConnectedClient
from icestream.broker.mqtt.mqtt_service import MqttService, unknown_session
from icestream.broker.mqtt.mqtt_session import MqttSession, SessionReader
from icestream.broker.mqtt.seen_topics import SeenTopic
from icestream.broker.mqtt.shard_feed import ShardFeed
from icestream.broker.mqtt.shared_group import SharedGroup, read_row
from icestream.broker.stall_detector import message_age_ms
from icestream.durable import session_changes as changes
from icestream.durable import session_records as rec
from icestream.durable.session_state import MAIN_READER, Generation, SessionState
from icestream.model.shard import ShardKey
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.topics import check_filter, check_topic_name, matches, parse_filter
from icestream.observability.words import counted

Item = TypeVar("Item")
Row = TypeVar("Row", bound=msgspec.Struct)
Cursor = tuple[int, ...]
_PROTOCOLS = {ProtocolVersion.V3_1_1: "3.1.1", ProtocolVersion.V5: "5.0"}


class SessionLag(NamedTuple):
    """What a session has not looked at yet. `age_ms`: None if there is nothing, or nothing known of it."""

    messages: int
    size: int
    age_ms: int | None


# --- pages ---


async def page_of_rows(
    items: Iterable[tuple[Cursor, Item]],
    request: PageRequest,
    is_shown: Callable[[Item], bool],
    describe: Callable[[Item], Awaitable[Row]],
) -> Listing[Row]:
    """A page of the items that are shown, in the order of their cursors. Raises InvalidInput for another cursor."""
    after = _parse_cursor(request.after)
    page: list[tuple[Cursor, Item]] = []
    async for item in _sliced(items):
        if (after is None or item[0] > after) and is_shown(item[1]):
            page.append(item)
            if len(page) > 4 * request.limit:
                page = nsmallest(request.limit + 1, page, key=itemgetter(0))
    page = nsmallest(request.limit + 1, page, key=itemgetter(0))
    rows: list[Row] = []
    size, last = 0, None
    for cursor, shown_item in page[: request.limit]:
        row = await describe(shown_item)
        size += len(msgspec.msgpack.encode(row))
        if rows and size > limits.API_PAGE_BYTES_MAX:
            break
        rows.append(row)
        last = cursor
    has_more = len(page) > len(rows)
    return Listing(items=rows, next=".".join(map(str, last)) if has_more and last is not None else None)


def _parse_cursor(text: str) -> Cursor | None:
    if not text:
        return None
    try:
        return tuple(int(number) for number in text[:200].split("."))
    except ValueError:
        raise errors.InvalidInput(
            f"{text[:100]!r} is no cursor of this listing", hint="`after` is the value `next` of the page before"
        ) from None


async def _sliced(items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items, with a turn of the loop after each slice."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % limits.API_SLICE_ROWS:
            await asyncio.sleep(0)


# --- sessions ---


def readers(service: MqttService) -> list[MqttSession | SharedGroup]:
    """The sessions of clients, and those of shared subscriptions."""
    return [*service.sessions.values(), *service.groups.values()]


def session_lag(service: MqttService, reader: SessionReader) -> SessionLag:
    """How far a session is behind, by the marks of the feeds: nothing is read for it (R37)."""
    messages = size = 0
    oldest_us: int | None = None
    for key, position in reader.behind.items():
        feed = service.feeds.get(key)
        if feed is None or position >= feed.position:
            continue
        messages += feed.position - position
        size += feed.marks.size(position, feed.position)
        time_us = feed.marks.time_us(position)
        if time_us is not None:
            oldest_us = time_us if oldest_us is None else min(oldest_us, time_us)
    return SessionLag(messages, size, _age_ms(service, oldest_us))


def _age_ms(service: MqttService, time_us: int | None) -> int | None:
    return None if time_us is None else max(0, service.wall_us() - time_us) // 1000


async def page_sessions(service: MqttService, request: api.PageMqttSessions) -> Listing[api.MqttSessionSummary]:
    def lag_of(reader: MqttSession | SharedGroup) -> int:
        return session_lag(service, reader).messages if request.is_lagging else 0

    def is_shown(reader: MqttSession | SharedGroup) -> bool:
        is_wanted = request.is_connected is None or reader.is_online == request.is_connected
        is_behind = not request.is_lagging or lag_of(reader) > 0
        return is_wanted and is_behind and _fits(reader.state.client_id, request.client_id)

    async def describe(reader: MqttSession | SharedGroup) -> api.MqttSessionSummary:
        return session_summary(service, reader, session_lag(service, reader))

    # Those that lag most come first; a session whose lag changes between two pages may be missed or repeated.
    items = (((-lag_of(reader), reader.state.id), reader) for reader in readers(service))
    return await page_of_rows(items, request, is_shown, describe)


def _fits(client_id: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(client_id, pattern)


def session_summary(service: MqttService, reader: MqttSession | SharedGroup, lag: SessionLag) -> api.MqttSessionSummary:
    state = reader.state
    client = _client_of(service, reader)
    expiry_ms = changes.expiry_ms(state)
    group = reader if isinstance(reader, SharedGroup) else None
    return api.MqttSessionSummary(
        client_id=state.client_id,
        session=state.id,
        is_connected=reader.is_online,
        is_durable=reader.is_durable,
        principal=state.owner.principal if state.owner is not None else None,
        address=client.address if client is not None else None,
        protocol=_PROTOCOLS[client.version] if client is not None else None,
        members=len(group.members) if group is not None else None,
        subscriptions=service.subscription_count(reader),
        in_flight=len(state.in_flight),
        sent_messages=reader.sent_messages if isinstance(reader, MqttSession) else 0,
        lag_messages=lag.messages,
        lag_bytes=lag.size,
        lag_age_ms=lag.age_ms,
        owed_bytes=reader.owed_bytes if service.options.session_lag_bytes_max else None,
        expiry_s=state.expiry_s,
        expiry_left_ms=max(0, expiry_ms - service.elapsed_ms()) if expiry_ms is not None else None,
        wait_reason=wait_reason(reader) if lag.messages else "",
    )


def _client_of(service: MqttService, reader: SessionReader) -> ConnectedClient | None:
    client = service.clients.get(reader.state.client_id)
    return client if client is not None and client.session is reader else None


def wait_reason(reader: MqttSession | SharedGroup) -> str:
    """Why a session that lags does not get its messages now."""
    if reader.wait_reason:
        return reader.wait_reason
    if isinstance(reader, SharedGroup):
        return "its members take no more now" if reader.is_online else "no member is connected"
    if reader.link is None:
        return "the client is not connected"
    if not reader.link.can_send:
        return "the socket of the client takes no more bytes now"
    if reader.room <= 0:
        in_flight = counted(len(reader.state.in_flight), "message")
        return f"the client has not acknowledged {in_flight}, as many as may be in flight"
    return "it is catching up"


async def session_details(service: MqttService, client_id: str) -> api.MqttSessionDetails:
    """Raises UnknownSession. Of what lags the oldest message is read, from the table if it is only there."""
    reader = find_session(service, client_id)
    state = reader.state
    summary = session_summary(service, reader, session_lag(service, reader))
    client = _client_of(service, reader)
    stored_in = stored_names(service)
    generations = list(state.generations.values())[: limits.API_DETAILS_MAX]
    members = list(reader.members)[: limits.API_DETAILS_MAX] if isinstance(reader, SharedGroup) else []
    return api.MqttSessionDetails(
        **msgspec.structs.asdict(summary),
        connected_ms=service.elapsed_ms() - client.connected_ms if client is not None else None,
        received=len(state.received),
        subscription_list=[subscription_row(state, generation) for generation in generations],
        positions=[row async for row in _positions(service, reader, stored_in)],
        in_flight_list=[
            _in_flight_row(state, entry, stored_in)
            for entry in list(state.in_flight.values())[: limits.API_DETAILS_MAX]
        ],
        will=_will_row(state.will),
        shared_groups=[
            api.MqttSharedGroup(
                group=group.text, members=len(group.members), lag_messages=session_lag(service, group).messages
            )
            for group in service.groups.values()
            if reader in group.members
        ][: limits.API_DETAILS_MAX],
        member_ids=[member.state.client_id for member in members],
    )


def find_session(service: MqttService, client_id: str) -> MqttSession | SharedGroup:
    """Raises UnknownSession."""
    state = service.log.table.of_client(client_id) if service.is_open else None
    reader = None
    if state is not None:
        reader = service.sessions.get(state.id) or service.groups.get(client_id)
    if reader is None:
        raise unknown_session(client_id)
    return reader


def stored_names(service: MqttService) -> dict[ShardKey, str]:
    """The topic of each shard that a route stores messages in."""
    if not service.is_open:
        return {}
    return {key: str(target.topic.name) for target in service.routes.targets for key in target.keys}


def _stored_in(names: dict[ShardKey, str], key: ShardKey) -> str:
    """The name of the topic of a shard; of a topic that no route names any more only the id is known."""
    return names.get(key, f"topic {key.topic_id}")


async def _positions(
    service: MqttService, reader: MqttSession | SharedGroup, stored_in: dict[ShardKey, str]
) -> AsyncIterator[api.MqttReaderPosition]:
    replays = [item.record.number for item in reader.state.generations.values() if item.record.reader]
    for number in (MAIN_READER, *replays):
        for key in sorted(reader.state.shards(number)):
            feed = service.feeds.get(key)
            if feed is None:
                continue
            # A reader that is not behind has seen what the feed has, whatever was written down last.
            position = reader.state.position(key, number) if number else reader.detached.get(key, feed.position)
            yield await _position_row(service, feed, number, min(position, feed.position), _stored_in(stored_in, key))


async def _position_row(
    service: MqttService, feed: ShardFeed, replay: int, position: int, topic: str
) -> api.MqttReaderPosition:
    lag, end = feed.position - position, feed.position
    age_ms = await message_age_ms(feed.stream, position, service.wall_us()) if lag else None
    return api.MqttReaderPosition(
        topic=topic,
        shard=feed.key.shard,
        replay=replay,
        position=position,
        next=end,
        lag_messages=lag,
        lag_bytes=feed.marks.size(position, end),
        lag_age_ms=age_ms,
    )


def _in_flight_row(state: SessionState, entry: rec.InFlightEntry, stored_in: dict[ShardKey, str]) -> api.MqttInFlight:
    generation = state.generations.get(entry.generation)
    return api.MqttInFlight(
        packet_id=entry.packet_id,
        qos=entry.qos,
        state=entry.state.name.lower(),
        topic=_stored_in(stored_in, rec.shard_of(entry)),
        shard=entry.shard,
        offset=entry.offset,
        filter=generation.record.filter if generation is not None else "",
    )


def _will_row(will: rec.WillSet | None) -> api.MqttWill | None:
    if will is None:
        return None
    return api.MqttWill(
        topic=will.topic,
        bytes=len(will.payload),
        qos=will.qos,
        is_retained=will.is_retained,
        delay_s=will.delay_s,
    )


# --- subscriptions ---


async def page_subscriptions(service: MqttService, request: api.PageMqttSubscriptions) -> Listing[api.MqttSubscription]:
    """The subscriptions of clients. Raises InvalidInput for a topic that no message can have."""
    if request.topic:
        _check(check_topic_name, request.topic)

    def items() -> Iterator[tuple[Cursor, tuple[SessionState, Generation]]]:
        for session in list(service.sessions.values()):
            for number, generation in list(session.state.generations.items()):
                yield (session.state.id, number), (session.state, generation)

    def is_shown(item: tuple[SessionState, Generation]) -> bool:
        state, generation = item
        if not _fits(state.client_id, request.client_id):
            return False
        return not request.topic or matches(parse_filter(generation.record.filter).filter, request.topic)

    async def describe(item: tuple[SessionState, Generation]) -> api.MqttSubscription:
        return subscription_row(*item)

    return await page_of_rows(items(), request, is_shown, describe)


def subscription_row(state: SessionState, generation: Generation) -> api.MqttSubscription:
    record = generation.record
    return api.MqttSubscription(
        client_id=state.client_id,
        filter=record.filter,
        qos=record.qos,
        identifier=record.identifier or None,
        is_no_local=record.is_no_local,
        is_retain_as_published=record.is_retain_as_published,
        replay_from=record.replay_from,
        is_open=generation.is_open,
    )


def _check(check: Callable[[str], None], text: str) -> None:
    """Raises InvalidInput for a topic or filter that the protocol refuses: there is no packet here."""
    try:
        check(text)
    except errors.PacketRefused as error:
        raise errors.InvalidInput(error.message, hint=error.hint) from None


def check_mqtt_filter(topic_filter: str) -> None:
    """Raises InvalidInput for a malformed filter."""
    _check(check_filter, topic_filter)


# --- retained messages and topics ---


class TopicRights(NamedTuple):
    """Which MQTT topics a session may see, and of which it may read messages."""

    describes: Callable[[str], bool]
    consumes: Callable[[str], bool]


ALL_TOPICS = TopicRights(lambda topic: True, lambda topic: True)


async def page_retained(
    service: MqttService, request: api.PageMqttRetained, rights: TopicRights = ALL_TOPICS
) -> Listing[api.MqttRetainedMessage]:
    """Raises InvalidInput for a malformed filter."""
    if request.filter:
        check_mqtt_filter(request.filter)
    stored_in = stored_names(service)

    def items() -> Iterator[tuple[Cursor, rec.RetainedValue]]:
        for value in service.retained.latest(len(service.retained)):
            yield (*rec.shard_of(value), value.offset), value

    def is_shown(value: rec.RetainedValue) -> bool:
        return (not request.filter or matches(request.filter, value.topic)) and rights.describes(value.topic)

    async def describe(value: rec.RetainedValue) -> api.MqttRetainedMessage:
        return api.MqttRetainedMessage(
            topic=value.topic,
            bytes=len(value.payload),
            qos=value.qos,
            stored_ms=value.append_time_us // 1000,
            publisher=value.publisher,
            stored_in=_stored_in(stored_in, rec.shard_of(value)),
            shard=value.shard,
            offset=value.offset,
            payload=_text(value.payload) if request.has_payload and rights.consumes(value.topic) else None,
        )

    return await page_of_rows(items(), request, is_shown, describe)


async def page_topics(
    service: MqttService, request: api.PageMqttTopics, rights: TopicRights = ALL_TOPICS
) -> Listing[api.MqttTopicSummary]:
    """Raises InvalidInput for a malformed filter."""
    if request.filter:
        check_mqtt_filter(request.filter)
    word = request.contains.casefold()
    stored_in = stored_names(service)

    def is_shown(entry: SeenTopic) -> bool:
        return (
            (not word or word in entry.topic.casefold())
            and (not request.filter or matches(request.filter, entry.topic))
            and rights.describes(entry.topic)
        )

    async def describe(entry: SeenTopic) -> api.MqttTopicSummary:
        has_payload = request.has_payload and rights.consumes(entry.topic)
        return api.MqttTopicSummary(
            topic=entry.topic,
            messages=entry.messages,
            last_ms=entry.last_us // 1000,
            is_retained=service.retained.value(entry.topic) is not None,
            stored_in=_stored_in(stored_in, entry.key),
            shard=entry.key.shard,
            offset=entry.offset,
            payload=await _last_payload(service, entry) if has_payload else None,
        )

    return await page_of_rows((((entry.number,), entry) for entry in service.seen), request, is_shown, describe)


async def _last_payload(service: MqttService, entry: SeenTopic) -> str | None:
    """The last message of a topic; None if neither memory nor the log has it, or it was not stored."""
    feed = service.feeds.get(entry.key)
    if feed is None or entry.offset is None or entry.offset < feed.stream.log_start():
        return None
    try:
        row = await read_row(service, entry.key, entry.offset)
    except errors.IcestreamError:
        return None
    return _text(row.payload) if row is not None and row.topic == entry.topic else None


def _text(payload: bytes) -> str:
    return payload[: 4 * limits.API_PAYLOAD_CHARACTERS].decode(errors="replace")[: limits.API_PAYLOAD_CHARACTERS]


# --- routes ---


async def page_routes(
    service: MqttService,
    request: PageRequest,
    is_shown: Callable[[str], bool] = lambda topic: True,
) -> Listing[api.MqttRoute]:
    """The routes of the settings, in their order. `is_shown` is asked about their topics."""
    targets = {str(target.topic.name): target for target in service.routes.targets} if service.is_open else {}

    async def describe(number: int) -> api.MqttRoute:
        route = service.options.replay[number]
        target = targets.get(route.topic)
        streams = [service.feeds[key].stream for key in target.keys] if target is not None else []
        return api.MqttRoute(
            filter=route.filter,
            min_qos=route.min_qos,
            topic=route.topic,
            table=await service.find_table(target.topic.record.id) if target is not None else None,
            shards=[
                api.MqttRouteShard(shard=stream.key.shard, earliest=stream.log_start(), next=stream.visible)
                for stream in streams
            ],
        )

    numbers = (
        ((number,), number) for number in range(len(service.options.replay) if service.options.is_enabled else 0)
    )
    return await page_of_rows(numbers, request, lambda number: is_shown(service.options.replay[number].topic), describe)
