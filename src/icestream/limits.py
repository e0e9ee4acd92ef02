"""Every bound of Icestream, with its unit in its name and its reason beside it.

A bound that an operator may move is a setting whose default stands here; the others are part of a format or of a
promise and do not move.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- messages -------------------------------------------------------------------------------------------------------
# A message (key, payload, headers, wire) must fit one record with room for its directory.
MESSAGE_BYTES_MAX_DEFAULT: Final = 4_000_000
# Above this a single message would need log files of more than 256 MiB (LOG_FILE_RECORDS_MIN).
MESSAGE_BYTES_MAX: Final = 64 * MIB
# Names become Iceberg names and metadata keys; object stores end at 1,024 bytes for a whole key.
TOPIC_NAME_BYTES_MAX: Final = 512
# Each part of a name: a namespace, a topic, a subscription, a producer, a consumer. Two of them fit the bound above.
NAME_BYTES_MAX: Final = 240

# Headers of one message: they are counted in 16 bits (model/block.py).
HEADERS_MAX: Final = 65_535

# --- records --------------------------------------------------------------------------------------------------------
# One record is verified and copied as a whole by recovery; 4 MiB keeps that, and the largest write, at milliseconds.
RECORD_BYTES_TARGET: Final = 4 * MIB
# One message of the largest size, its directory entry, header and padding.
RECORD_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 64 * KIB
# The directory of a record is read before its sections: at 64 bytes an entry this is at most 1 MiB.
RECORD_SECTIONS_MAX: Final = 16_384
# Offsets in a block are 32-bit counts; more rows than this never make a batch cheaper.
BLOCK_ROWS_MAX: Final = 1_048_576
# A block repeats its constant columns for each row; decoding it to rows holds all of them at once (hazard 9).
BLOCK_UNPACKED_BYTES_MAX: Final = 256 * MIB

# --- log files ------------------------------------------------------------------------------------------------------
# Positions inside a file are 32-bit.
LOG_FILE_BYTES_MAX: Final = 2 * GIB
# The seed's `max_file_size`.
LOG_FILE_BYTES_DEFAULT: Final = 64 * MIB
# Small files are for tests; below this the header page would be a noticeable share.
LOG_FILE_BYTES_MIN: Final = 64 * KIB
# A file must hold several of the largest records, or rotation happens at every record (hazard 19).
LOG_FILE_RECORDS_MIN: Final = 4
# One index entry for each 64 KiB of a shard's own bytes: 1,024 entries and one per shard for a 64 MiB file (hazard 20).
INDEX_STRIDE_BYTES: Final = 64 * KIB
# Spare files: one in use at the next rotation, one behind it (hazard 36).
SPARE_FILES_DEFAULT: Final = 2
# Freed files beyond this are deleted instead of kept for reuse (hazard 36).
SPARE_BYTES_MAX: Final = 1 * GIB
# Zeroing goes in slices of this size with a pause after each, so that a tick never queues behind 64 MiB.
ZERO_SLICE_BYTES: Final = 1 * MIB
ZERO_BYTES_PER_SECOND: Final = 200 * MIB
# Larger records always go to the thread: written inline, a burst would sync each of them alone.
INLINE_WRITE_BYTES_MAX: Final = 64 * KIB
# In the modes without a sync per tick the kernel is asked to start writing at this distance, so that the sync at
# sealing finds little left to do.
WRITE_BACK_BYTES: Final = 8 * MIB
# After a file could not be made (disk full) the next try comes this much later, at the next append.
PREPARE_RETRY_NS: Final = 1_000_000_000
# Resident footers of sealed files; beyond this the least recently used is read again on demand (hazard 20).
FOOTERS_RESIDENT_MAX: Final = 64

# --- a full disk (hazard 16) ----------------------------------------------------------------------------------------
# Room kept for what drains the log: a round writes at most some hundred MiB before it frees as much.
BALLAST_BYTES_MAX_DEFAULT: Final = 1 * GIB
# On a small node: this share of its quota.
BALLAST_QUOTA_SHARE: Final = 0.25
# Hardly anything is free: less than a few data files, manifests and metadata of one round.
BALLAST_LOW_BYTES: Final = 32 * MIB

# --- backpressure ---------------------------------------------------------------------------------------------------
# Bytes between assignment and ack, node-wide (hazard 35).
IN_FLIGHT_BYTES_DEFAULT: Final = 64 * MIB
# Share of a quota from which producers are slowed, and the longest pause for one append at the very end of it.
QUOTA_SLOW_SHARE: Final = 0.8
QUOTA_PAUSE_SECONDS_MAX: Final = 0.25
# Node quota by default: half of the free space at the first start, at most this (hazard 16).
NODE_QUOTA_BYTES_MAX_DEFAULT: Final = 100 * GIB
# Topic quota by default: this share of the node's.
TOPIC_QUOTA_SHARE: Final = 0.5

# --- offsets --------------------------------------------------------------------------------------------------------
# Offsets are signed 64-bit in the table; the last 2^62 are never reached and leave room for sums.
OFFSET_MAX: Final = 2**62
# Offsets promised ahead in `periodic` and `none`: one durable note per million messages of a shard.
RESERVE_BLOCK_OFFSETS: Final = 2**20
# A clock that steps back by less than this is clamped, more is stored as it is (hazard 32).
CLOCK_CLAMP_US: Final = 5_000_000
# Declared gaps listed per shard before those below the floor are left to the metadata store. Adjacent gaps merge,
# and an unclean start makes at most one.
GAPS_PER_SHARD_MAX: Final = 1_024

# Messages get older while nothing happens: so often the log looks whether some are too old for their topic's retention.
RETENTION_STEP_SECONDS: Final = 60.0
# What one such step may drop of a topic: a wrong date costs half of it, and an operator has a minute to notice (32).
RETENTION_STEP_PERCENT_DEFAULT: Final = 50

# The index of commit times of a topic: 32 to 64 points within the age that is kept, fewer with very many shards, so
# that the record stays below METADATA_VALUE_BYTES_MAX; and never more often than this.
RETENTION_POINTS_MAX: Final = 64
RETENTION_POINT_OFFSETS_MAX: Final = 2_048
RETENTION_POINT_MS_MIN: Final = 60_000
# How often a table is looked at, and after a look that found nothing to remove.
RETENTION_LOOK_SECONDS: Final = 60.0
RETENTION_LOOK_SECONDS_MAX: Final = 3_600.0
# How long the looks of one turn may take, for which the next round waits: other topics are looked at in later turns.
RETENTION_TURN_SECONDS: Final = 0.3
# Files of several shards of which a look reads where each shard ends; and how many such answers are kept.
RETENTION_FILES_READ_MAX: Final = 256
RETENTION_RANGES_KEPT: Final = 4_096
# A clock that has gone this far ahead of the time that passed is not believed (hazard 85); nor one that says that the
# pipeline did not run for longer than a long holiday.
RETENTION_CLOCK_JUMP_MS: Final = 3_600_000
RETENTION_DOWNTIME_MS_DEFAULT: Final = 14 * 24 * 3_600_000
RETENTION_DOWNTIME_MS_MAX: Final = 10 * 366 * 24 * 3_600_000
# Topics with a retention in one backlog; the next one has the next of them.
RETAINED_TOPICS_MAX: Final = 200

# --- producers ------------------------------------------------------------------------------------------------------
# Batches remembered per producer and shard: also the number it may have in flight (hazard 7).
PRODUCER_WINDOW_BATCHES: Final = 64
PRODUCERS_MAX_DEFAULT: Final = 100_000
PRODUCER_AGE_SECONDS_DEFAULT: Final = 7 * 24 * 3600
# The name of a producer or consumer is kept as long as its windows, and renewed often enough while it is connected.
NAME_AGE_MS: Final = PRODUCER_AGE_SECONDS_DEFAULT * 1000
NAME_RENEWAL_MS: Final = 24 * 3600 * 1000

# --- subscriptions --------------------------------------------------------------------------------------------------
# The seed's interval between two writes of changed cursors: what a crash may deliver again.
CURSOR_FLUSH_MS_DEFAULT: Final = 10_000
CURSOR_FLUSH_MS_MAX: Final = 3_600_000
# Cursors encoded at once: below a millisecond of the loop, for all but the most torn ones.
CURSOR_SLICE: Final = 64
# A shard is the unit of order, and of parallelism in a cluster; each has its own cursor in every subscription.
SHARDS_PER_TOPIC_MAX: Final = 256
# Acked ranges above the contiguous position, and how far they may reach: 32 KiB when written down (hazard 17).
ACKED_RANGES_MAX: Final = 4_096
ACKED_SPAN_OFFSETS_MAX: Final = 1_000_000
# Unacked messages of one subscription and shard. Each is an offset in a range, so this bounds replay, not memory.
UNACKED_MAX_DEFAULT: Final = 10_000
UNACKED_MAX: Final = 1_000_000
# A consumer of a shared subscription that holds this many times what is still free of them gets nothing new: one that
# acks nothing leaves a ninth to its neighbours.
UNACKED_SHARE: Final = 8
# Consecutive messages that one consumer of a shared subscription gets before it is the next one's turn. While few
# messages wait, a turn is one message.
SHARED_TURN_MAX: Final = 64
# Ranges of messages that failed before, stored with a cursor, so that a restart does not forgive poison (hazard 17).
STORED_ATTEMPTS_MAX: Final = 1_024
# A section that is larger than this is not sent as a whole to a consumer that gets less than half of it.
DELIVER_WHOLE_BYTES_MAX: Final = 4 * KIB
# Messages that a key-shared subscription looks at beyond the first that waits for its key (hazard 50).
KEY_LOOK_AHEAD_MAX: Final = 4_096
# Patterns of keys that one consumer asks for; each is tried for each key.
KEY_FILTERS_MAX: Final = 64
# Places of each consumer on the ring of keys: with 100 the shares of two consumers differ by about a tenth.
RING_PLACES_PER_CONSUMER: Final = 100
# Milliseconds or counts in a failure policy: a week.
FAILURE_POLICY_VALUE_MAX: Final = 7 * 24 * 3600 * 1000
# Messages of one key that a consumer may have at a time, when it asks for more than one: all that is in sight.
MESSAGES_PER_KEY_MAX: Final = KEY_LOOK_AHEAD_MAX
# Bytes of different keys in that look-ahead: at the usual tens of bytes the number of messages is the bound.
KEY_LOOK_AHEAD_BYTES_MAX: Final = 16 * MIB
# A key that no consumer takes is not skipped while one that took it may come back: a restart of a client or a broker.
KEY_UNWANTED_GRACE_MS: Final = 30_000
# Filters of consumers that left within that time; each is tried for a key that no consumer takes.
KEY_ABSENT_FILTERS_MAX: Final = 64
# A dead letter that could not be stored is tried again after the policy's longest delay, but not faster than this.
DEAD_LETTER_RETRY_MS_MIN: Final = 1_000
# Dead letters are stored in batches of about this size, well below the largest batch of the log.
DEAD_LETTER_GROUP_BYTES: Final = 1 * MIB
# Subscriptions of a topic that do not exist and have settings already: what an operator prepares, by hand or script.
PLANNED_SUBSCRIPTIONS_MAX: Final = 1_000
# What a consumer says about a message that it gives back: a line of an error, not its trace. The rest is cut off.
NACK_REASON_CHARACTERS_MAX: Final = 200
# What the note of where it came from adds to a message: names of at most 512 bytes, and a reason.
DEAD_LETTER_NOTE_BYTES: Final = 2 * KIB
# A subscription that waits so long for one message stands still: longer than a consumer that works, shorter than the
# usual time for an ack, after which the message is with another consumer. It is said at most this often for each shard.
STANDSTILL_MS: Final = 10_000
STANDSTILL_SAID_EVERY_MS: Final = 60_000
# A subscription falls behind when over so many looks in a row its consumers would have taken more, and more messages
# waited at the end than at the beginning: half a minute, longer than a burst of producers. A few hundred messages that
# wait are no backlog.
BEHIND_LOOK_MS: Final = 5_000
BEHIND_LOOKS: Final = 6
BEHIND_MESSAGES_MIN: Final = 1_000
# Subscriptions that a health check names; the others are counted.
HEALTH_SUBSCRIPTIONS_MAX: Final = 5
# What may pass a rate at once: short enough to be smooth, long enough to bridge a pause of the loop.
RATE_BURST_MS: Final = 100
# What may be stored ahead of a publish rate, of one batch and of all before it. A batch is answered when its time has
# come, so twice this late at most: answers come in order, and other topics of the same connection wait behind it.
PUBLISH_AHEAD_MS: Final = 250
# What one shard takes from the rate of its subscription at a time: a hundred wake-ups in a second at most.
RATE_STEP_MS: Final = 10

# --- connections ----------------------------------------------------------------------------------------------------
# One frame of the native protocol: four of the largest messages that are allowed by default.
FRAME_BYTES_MAX_DEFAULT: Final = 16 * MIB
# No side may take less: the largest message by default, and PUBLISHED with a refusal of every part, must fit.
FRAME_BYTES_MIN: Final = 4 * MIB
# And none sends more: one message of the largest size that can be allowed, twice.
FRAME_BYTES_MAX: Final = 128 * MIB
# What a frame with one message has beside it: names, times and headers are part of the message's own bound, or small.
FRAME_OVERHEAD_BYTES: Final = 128 * KIB
# Before the handshake the client is unknown: a HELLO is some hundred bytes.
HELLO_BYTES_MAX: Final = 16 * KIB
# A connection without a HELLO is closed after this long: a slow network needs a second.
HELLO_SECONDS_MAX: Final = 10
# Sockets of one listener; each costs about 20 KiB when it is idle.
CONNECTIONS_MAX: Final = 10_000
# Descriptors that a broker asks the system for: four listeners for messages, the rest for the others and the log.
OPEN_FILES_WANTED: Final = 65_536
# The shares of them, where the system allows less: of each listener for messages, and of each for operators.
OPEN_FILES_MESSAGE_SHARE: Final = 0.2
OPEN_FILES_OPERATOR_SHARE: Final = 0.05
# Producers and consumers of one connection: a gateway has one for each topic.
HANDLES_PER_CONNECTION_MAX: Final = 65_536
# Calls of one connection under way; the next one waits. They are rare things that take milliseconds.
CALLS_IN_FLIGHT_MAX: Final = 64
# Bytes of one connection between PUBLISH and PUBLISHED: at the bound its socket is not read (hazard 35).
CONNECTION_IN_FLIGHT_BYTES_MAX: Final = 8 * MIB
# PUBLISH frames of one connection that wait for such room, or for room in the log: one more is taken below it, so that
# acks, credits and pings behind them go on (hazard 67). At the bound the socket is not read.
CONNECTION_PARKED_BYTES_MAX: Final = 64 * KIB
# What an answer that waits costs beside the frame that it answers.
ANSWER_COST_BYTES: Final = 512
# The same for all connections of a listener together: beyond it a connection has one frame in flight.
WIRE_PENDING_BYTES_MAX: Final = 256 * MIB
# Answers that a client does not read: at the bound its socket is not read (hazard 35). Most of the largest, PUBLISHED
# with a refusal of every part, fits.
CONNECTION_ANSWER_BYTES_MAX: Final = 1 * MIB
# After so long without a word the network is asked whether the other side is still there.
KEEP_ALIVE_SECONDS: Final = 30
# A stop waits so long for clients that do not read their last answers; it has 10 s in all.
CLOSE_SECONDS_MAX: Final = 3
# And so long for one that was not let in: these are not counted.
REFUSED_SECONDS_MAX: Final = 0.25
# Names of compressions in a HELLO.
COMPRESSIONS_MAX: Final = 16
# One read of a socket, and of one on which little comes: ten thousand connections that wait are 160 MiB.
SOCKET_READ_BYTES: Final = 256 * KIB
# Bytes that wait for a socket before its consumers get no more: a few deliveries of the largest read.
SOCKET_WRITE_BYTES_MAX: Final = 4 * MIB
# With many connections each has an equal part of this (hazard 35), but not less than keeps a socket busy.
SEND_BYTES_TOTAL: Final = 256 * MIB
SOCKET_WRITE_BYTES_MIN: Final = 64 * KIB
# Messages that a consumer may ask for in all.
CREDIT_MAX: Final = 1_000_000
SOCKET_READ_BYTES_MIN: Final = 16 * KIB
# Parts of one PUBLISH: a few milliseconds of the loop.
PUBLISH_PARTS_MAX: Final = 1_024
# Ranges of one ACK or NACK: as many as a cursor may hold.
ACK_RANGES_MAX: Final = ACKED_RANGES_MAX
# What a PING carries to be told from others.
PING_BYTES_MAX: Final = 64
# A document is for rare things and is decoded as a whole. A page of a listing has some ten thousand values.
DOCUMENT_BYTES_MAX: Final = 1 * MIB
DOCUMENT_ITEMS_MAX: Final = 65_536
DOCUMENT_DEPTH_MAX: Final = 16
# Names in one answer to `list_topics`: at their longest they fit a document; one listing of the store tells of more.
TOPICS_PAGE_MAX: Final = 900
# Requests of unauthenticated clients are smaller: at worst they take the loop a few milliseconds.
CALL_BYTES_MAX: Final = 64 * KIB
CALL_ITEMS_MAX: Final = 4_096
# The texts of an error: PUBLISH_PARTS_MAX of them fit FRAME_BYTES_MIN.
ERROR_MESSAGE_BYTES_MAX: Final = 1 * KIB
ERROR_HINT_BYTES_MAX: Final = 512
# Smaller bodies fit one packet of the network; packing them saves nothing.
COMPRESS_BYTES_MIN: Final = 1 * KIB

# The address of a local socket is 108 bytes with a zero at the end.
SOCKET_PATH_BYTES_MAX: Final = 107
# A process of this node that does not answer a HELLO in this time is not one.
LINK_OPEN_SECONDS_MAX: Final = 10.0
# Calls of one process that wait for their answers; more wait before they are sent.
LINK_CALLS_MAX: Final = 256
# Between two tries to reach a broker that is not there: the first at once, then doubling.
LINK_RETRY_SECONDS_MIN: Final = 0.1
LINK_RETRY_SECONDS_MAX: Final = 2.0

# --- the Python client ------------------------------------------------------------------------------------------------
# One batch of a producer: beyond this a larger one saves nothing. A single message may be larger.
CLIENT_BATCH_BYTES_MAX: Final = 1 * MIB
# Bytes of messages that a producer holds without an answer, and what each counts beside its own: its future, and its
# share of the block. So a batch has 4,096 messages at most.
CLIENT_PENDING_BYTES_DEFAULT: Final = 32 * MIB
CLIENT_MESSAGE_BYTES: Final = 256
# Messages asked for ahead of the application: enough to bridge a round trip at a million messages in a second.
CLIENT_PREFETCH_DEFAULT: Final = 1_000
# The first credit, while neither the size of messages nor the speed of the application is known.
CLIENT_PREFETCH_START: Final = 64
# The same for an application that takes batches and said nothing of it: what a read of a table brings, twice. Of the
# bytes that may wait it is this share at most: messages may become so many times as large while they are on their way.
CLIENT_PREFETCH_BATCHES: Final = 16_384
CLIENT_PREFETCH_BATCHES_SHARE: Final = 1 / 8
# Bytes that wait for the application in one subscription.
CLIENT_BUFFER_BYTES_DEFAULT: Final = 64 * MIB
# A prefetched message should be taken in a quarter of the time in which it must be acked, or less is prefetched.
CLIENT_DRAIN_SHARE: Final = 0.25
# Acked ranges, and ranges handed out, remembered for each shard, so that what comes again is not handed out again.
CLIENT_HANDLED_RANGES_MAX: Final = 16_384
# Gaps that a subscription remembers for its user.
CLIENT_GAPS_MAX: Final = 1_000
# Stalls that a subscription remembers: one for each shard and kind. How long one that the broker retries may last until
# the application gets an error: a lake process that starts again takes a few seconds.
CLIENT_STALLS_MAX: Final = 1_000
CLIENT_STALL_SECONDS: Final = 15.0
# Events of a consumer that overtake the answer to its `subscribe`.
CLIENT_EARLY_FRAMES_MAX: Final = 64
# Calls and pings of one connection without an answer.
CLIENT_CALLS_MAX: Final = 1_024
# Between two tries to connect, or to send what was refused: doubling from the first to the last, with jitter.
CLIENT_RETRY_SECONDS_MIN: Final = 0.05
CLIENT_RETRY_SECONDS_MAX: Final = 5.0
# The same for connections. A client that was cut off is back within 3 s of the repair: a try every second, at most.
CLIENT_RECONNECT_SECONDS_MAX: Final = 1.0
# Tries to connect that are under way at once: one that gets no answer does not hold up the next, which may.
CLIENT_CONNECTS_MAX: Final = 5
# A connection that lived so long was a good one: after it the tries begin with the first step again.
CLIENT_STABLE_SECONDS: Final = 1.0
# A connection that does not open, a call without an answer, a message that cannot be stored, a silent connection.
CLIENT_CONNECT_SECONDS_DEFAULT: Final = 5.0
CLIENT_CALL_SECONDS_DEFAULT: Final = 30.0
CLIENT_SEND_SECONDS_DEFAULT: Final = 30.0
# A ping every 2 s on an idle connection costs a broker with 10,000 idle clients some per cent of a core.
CLIENT_HEARTBEAT_SECONDS_DEFAULT: Final = 2.0
# Heartbeats after which a connection that says nothing is given up: 30 s. A busy broker may be silent for seconds.
CLIENT_SILENT_HEARTBEATS_MAX: Final = 15
# After silent connections were replaced heartbeats are up to so many times as long, until one has lasted this long.
CLIENT_PATIENCE_MAX: Final = 8
CLIENT_STEADY_SECONDS: Final = 30.0
# A batch that the broker calls out of order although the producer was opened anew for it.
CLIENT_REOPENS_MAX: Final = 3
# Messages that the blocking client takes over to its thread at once.
CLIENT_SYNC_CHUNK: Final = 256

# --- HTTP -------------------------------------------------------------------------------------------------------------
# Items of one page of the API, when nothing is asked for, and at most.
API_PAGE_DEFAULT: Final = 100
API_PAGE_MAX: Final = 500
# Manifests that are read for one page of a table's files: each takes some milliseconds.
API_MANIFESTS_PER_PAGE: Final = 100
# Shown of a list that is a detail of something else (gaps, acked ranges), over all shards; its length is shown too.
API_DETAILS_MAX: Final = 100
# Items that a long listing looks at in one slice of the loop: about a millisecond.
API_SLICE_ROWS: Final = 256
# Bytes of a page whose items have client ids and topics, of up to 64 KiB each; it has at least one item.
API_PAGE_BYTES_MAX: Final = 1 * MIB
# Characters of a payload that a listing shows: enough to recognise a value.
API_PAYLOAD_CHARACTERS: Final = 200
# Topics whose retained message is cleared in one step, so that others have their turn.
API_CLEAR_TOPICS: Final = 100
# Key patterns of a consumer that are shown, and characters of each: a page of consumers stays a document.
API_PATTERNS_MAX: Final = 5
API_PATTERN_CHARACTERS_MAX: Final = 100
# Bodies up to this size go out in one piece with their head.
HTTP_JOINED_BYTES_MAX: Final = 64 * KIB
# Request line and headers of the broker's own HTTP: scrapers and load balancers send some hundred bytes.
HTTP_HEAD_BYTES_MAX: Final = 8 * KIB
# Connections to it; each is a few KiB. Beyond that silent and idle ones are closed (runtime/connection_room.py).
HTTP_CONNECTIONS_MAX: Final = 64
# A connection on which no request comes is closed after this, and an answer that is not read within it is given up.
HTTP_IDLE_SECONDS: Final = 75.0
# From the first byte of a request (of a new connection: from its opening) until its head is complete. Clients send a
# head in one packet; one that comes byte by byte takes a place that others need.
HTTP_HEAD_SECONDS_MAX: Final = 10.0
# A body of the API: names, policies, a value. Larger ones are refused before they are read.
API_BODY_BYTES_MAX: Final = 64 * KIB
# And one that does not come in this time is given up.
API_BODY_SECONDS_MAX: Final = 30.0
# Bodies that are held at a time: 8 of the largest that the catalog takes. More get 503.
HTTP_BODIES_BYTES_MAX: Final = 64 * MIB
# Answers of the catalog from this size on are compressed for clients that take gzip: the document of a table with some
# dozens of snapshots. Below it a network does not notice.
CATALOG_GZIP_BYTES_MIN: Final = 32 * KIB
# Up to this size on the loop: about 2 ms.
CATALOG_GZIP_INLINE_BYTES_MAX: Final = 256 * KIB
# Connections of the lake process at a time: engines have a few each, messages do not come this way. Beyond that silent
# and idle ones are closed; while all of them are answered, new ones get 503.
API_CONNECTIONS_MAX: Final = 256
# Places beyond that for the node's own pipeline, which proves itself by a token: it has at most 16 connections.
API_CONNECTIONS_RESERVED: Final = 32
# The broker is told so late that all places are taken, or no longer: a moment of crowding is not worth a word.
API_CROWDING_SECONDS: Final = 0.2
# An answer that the other machine does not take for so long ends its connection: it holds a place.
API_UNREAD_SECONDS_MAX: Final = 30.0
# One on which no request comes is closed after this.
API_IDLE_SECONDS: Final = 30
# Requests under way at a stop have so long.
API_STOP_SECONDS: Final = 2
# Topics whose numbers are added up at once for /metrics: below a millisecond.
METRICS_SLICE_TOPICS: Final = 256
# Subscriptions whose lag is in /metrics each by itself, those that lag most: a series for each of very many would be
# more than their collector takes.
METRICS_SUBSCRIPTIONS_MAX: Final = 1_000
# Characters of a client id in a label: a client chooses it, and may choose 64 KiB.
METRICS_CLIENT_ID_CHARACTERS: Final = 100

# --- cluster --------------------------------------------------------------------------------------------------------
# One frame between nodes: a message of 1 MiB of entries, or one entry with the largest command.
PEER_FRAME_BYTES_MAX: Final = 8 * MIB
# Bytes that wait for the socket of another node; more is dropped, for Raft repeats what matters.
PEER_UNSENT_BYTES_MAX: Final = 16 * MIB
# A node that does not greet in this time is not there.
PEER_OPEN_SECONDS_MAX: Final = 2.0
# A call that gets no answer in this time has an unknown outcome.
PEER_CALL_SECONDS_MAX: Final = 5.0
# Turns of the loop from an accepted socket to its protocol: task, transport, protocol, and two to spare.
ACCEPT_TURNS: Final = 5
# What another machine does not take in this time is lost with the connection, and it is dialled anew: so nodes find
# each other soon after a cut of the network that closed nothing. Some elections long: a busy machine is not left
# alone; and a connection without traffic is asked after so long whether the other machine is there, by the kernel.
PEER_UNACKED_SECONDS_MAX: Final = 2.0
PEER_KEEP_ALIVE_SECONDS: Final = 3
# Calls of one other node that are under way: its commands, each under a name of its own, and some more.
PEER_CALLS_MAX: Final = 300
PEER_CONNECTIONS_MAX: Final = 256
# Addresses by which nodes named themselves when they greeted, until the cluster knows them: far more than join at once.
PEERS_LEARNED_MAX: Final = 256
# Between two tries to reach a node that is not there: the first at once, then doubling. Shorter than an election.
PEER_RETRY_SECONDS_MIN: Final = 0.05
PEER_RETRY_SECONDS_MAX: Final = 1.0
# From the removal of a node until the others end its connections: the answer to the caller that removed it takes less.
PEER_PARTING_SECONDS: Final = 1.0
# A snapshot goes in pieces of this size, of which so many may wait for the disk.
SNAPSHOT_CHUNK_BYTES: Final = 256 * KIB
SNAPSHOT_CHUNKS_WAITING_MAX: Final = 8
# A learner that misses at most so many entries becomes a voter.
LEARNER_BEHIND_MAX: Final = 1_000
# Places of the log whose state hashes are remembered until all nodes have told theirs; nodes that are heard for each.
STATE_HASHES_KEPT: Final = 16
STATE_HASH_NODES_MAX: Final = 64
# Between two checks of the leader which nodes should vote, and of a node for its peers before there is a cluster.
MEMBERSHIP_LOOK_SECONDS: Final = 0.2
# Nodes without a record about which members are asked at once: each costs a call to every member, and a stranger with a
# certificate chooses when.
MEMBER_QUESTIONS_MAX: Final = 4
# How often a node looks at the mark of a warehouse that another one is about to write: on a shared file system one
# machine may see what another wrote some seconds later.
WAREHOUSE_MARK_LOOKS: Final = 50
WAREHOUSE_MARK_LOOK_SECONDS: Final = 0.2

# --- metadata -------------------------------------------------------------------------------------------------------
# The budget of the metadata store (hazard 28): it lives in memory and is copied to every node.
METADATA_KEY_BYTES_MAX: Final = 2 * KIB
METADATA_VALUE_BYTES_MAX: Final = 64 * KIB
METADATA_KEYS_MAX: Final = 1_000_000
METADATA_BYTES_MAX: Final = 512 * MIB
# One transaction is one entry of its log (hazard 10).
METADATA_TXN_OPERATIONS_MAX: Final = 1_024
METADATA_TXN_BYTES_MAX: Final = 1 * MIB
# Each prefix of a transaction walks over what the others have deleted.
METADATA_TXN_PREFIXES_MAX: Final = 16
# Keys that one command deletes: a few milliseconds.
METADATA_DELETE_KEYS_MAX: Final = 4_096
METADATA_IDS_PER_COMMAND_MAX: Final = 1_000_000
# Entries of one page of a listing.
METADATA_LIST_MAX: Final = 1_000
# Bytes of one answer to another process: a page ends there, and a larger change is told as "read again". One entry of
# the largest size fits, and an answer stays a document.
METADATA_ANSWER_BYTES_MAX: Final = 512 * KIB
# A call of a process of this node carries the largest command, and a few names around it.
LOCAL_CALL_BYTES_MAX: Final = 4 * MIB
# An answer to one: records of the log, or a part of the frozen metadata store. BACKUP_TAIL_READ_BYTES and the largest
# section fit, also with a large `max_message_bytes`.
LOCAL_RESULT_BYTES_MAX: Final = FRAME_BYTES_MAX
# Watches of one connection: each is a task.
METADATA_WATCHES_MAX: Final = 64
# Changes of a watch that wait in another process; beyond that the watch gets a Resync.
METADATA_WATCH_QUEUE_MAX: Final = 1_024
# Commands of one process that are under way at a time, each under a client name of its own.
METADATA_REMOTE_COMMANDS_MAX: Final = 16
# How long a process waits for a broker that went away before it gives an unknown outcome, or a refusal.
METADATA_REMOTE_SECONDS_MAX: Final = 30.0
# Batches of changes that are kept for watches that start late or are slow.
METADATA_WATCH_BATCHES_MAX: Final = 4_096
# Clients whose last answer is remembered, and for how long without a command: longer than any client retries.
METADATA_CLIENTS_MAX: Final = 10_000
METADATA_CLIENT_AGE_MS: Final = 3_600_000
# A client's name is made of chance; the answers remembered for it are as short.
METADATA_CLIENT_BYTES_MAX: Final = 64
# Times and deadlines stay far below the end of 63 bits: ten years to live, stamps up to the year 285,000.
METADATA_TTL_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
METADATA_TIME_MS_MAX: Final = 2**53
# Leases: all are looked at when one may have ended, and no more often than this. One lives on for all its time when the
# lead changes, so it is for holders that renew it, not for things that expire.
METADATA_LEASES_MAX: Final = 4_096
METADATA_LEASE_MS_MAX: Final = 3_600_000
METADATA_LEASE_LOOK_MS: Final = 100
# A counter never comes near the end of 63 bits.
METADATA_COUNTER_MAX: Final = 2**62
# Keys that one command lets expire: 2 MiB at the longest keys.
METADATA_EXPIRE_KEYS_MAX: Final = 1_024
# The largest command as it stands in the log: a full ExpireTtlKeys. It must fit one record.
METADATA_COMMAND_BYTES_MAX: Final = 3 * MIB
# Bytes of commands between proposal and answer; the next one is refused.
METADATA_IN_FLIGHT_BYTES_MAX: Final = 16 * MIB
# Commands that come while others are under way wait for those to be answered, so that all of them share one record, one
# message to each node and one sync; but not when there are this many bytes of them.
METADATA_GATHERED_BYTES: Final = 256 * KIB
# Bytes of keys and values in the batches that are kept for watches.
METADATA_WATCH_BYTES_MAX: Final = 64 * MIB
# A leader that sends nothing else tells the others of a commit after this time: watches there are late by it.
METADATA_TELL_SECONDS: Final = 0.002
# Commands applied at once when many are there (a start): about 2 ms, then the loop turns.
METADATA_APPLY_SLICE: Final = 256
# A slice of a snapshot: about 1 ms of the loop (hazard 28).
METADATA_SNAPSHOT_SLICE_ENTRIES: Final = 512
METADATA_SNAPSHOT_SLICE_BYTES: Final = 1 * MIB
# Slices are written together: each piece is a hand-over to another thread and back.
METADATA_SNAPSHOT_PIECE_BYTES: Final = 512 * KIB
# Entries that the core forgets at once: 80 ns each.
METADATA_COMPACT_SLICE: Final = 8_192
# How old the newest stamp of a log may be while there are keys with a deadline and other nodes: so much longer may such
# a key live when the lead changes.
METADATA_STAMP_MS: Final = 30_000
# Renewals of leases that a node forwards at once; with METADATA_FORWARDED_COMMANDS_MAX below PEER_CALLS_MAX.
METADATA_RENEWALS_MAX: Final = 32
# A requested snapshot that failed is tried again: each attempt may write all of it.
METADATA_SNAPSHOT_RETRY_SECONDS: Final = 2.0
# The newest and the one before it: a damaged newest costs replaying, never state.
METADATA_SNAPSHOTS_KEPT: Final = 2
# A log file of the metadata store: two of the largest records, zeroed in about 10 ms.
METADATA_LOG_FILE_BYTES: Final = 8 * MIB
# A snapshot is due when the log behind the last one is as large as that snapshot, within these bounds: the upper one
# keeps a start at seconds, the lower one keeps small stores from writing snapshots all the time.
METADATA_SNAPSHOT_EVERY_BYTES_MIN: Final = 16 * MIB
METADATA_SNAPSHOT_EVERY_BYTES_MAX: Final = 128 * MIB
# Sealed files (each start adds one) before a snapshot is due whatever their size.
METADATA_LOG_FILES_MAX: Final = 4
# Commands of a node that are on their way to the leader, each under a name of its own; more wait.
METADATA_FORWARDED_COMMANDS_MAX: Final = 256
# Before a command whose leader was lost is tried again.
METADATA_FORWARD_RETRY_SECONDS: Final = 0.01
# A command gives up when no node has led for so long: several elections. Clients wait 30 s by default, or less, and are
# better told the reason than left to guess it.
METADATA_LEADERLESS_SECONDS_MAX: Final = 5.0
# Linearizable reads fail when there was no leader for so many ticks: 5 s.
METADATA_READ_TICKS_MAX: Final = 100
# Ticks of a node with others: a heartbeat of a leader each, an election after 10 to 20 without one (50 and 500 ms).
METADATA_TICK_SECONDS: Final = 0.05
METADATA_ELECTION_TICKS: Final = 10
# An idle node wakes rarely: that is nearly all that it costs. A follower sleeps for so many ticks behind the last word
# of its leader: fewer than an election. A leader that is idle for a while sends its heartbeats every fourth tick, of
# which two must get lost before a node holds an election.
METADATA_QUIET_TICKS: Final = 8
METADATA_IDLE_HEARTBEAT_TICKS: Final = 4
METADATA_IDLE_SECONDS: Final = 1.0
# A follower that hears its leader no longer calls an election after 1 s at most. One that may not vote has no election:
# this long without a word of the leader it is not ready. Three elections, so that a change of the leader is not told.
LEADER_SILENT_SECONDS_MAX: Final = 3.0
# A read that got no answer is asked again after so many ticks: half an election.
METADATA_READ_PATIENCE_TICKS: Final = 5
# Entries that stay in memory behind a snapshot, for followers that are a little late: a snapshot for each is dear.
METADATA_TRAIL_ENTRIES: Final = 2_000
# A member that starts asks the others what it has confirmed to them. When a majority has answered it waits so long for
# the rest: a node that is up answers in milliseconds, one whose machine is gone never does.
METADATA_COMPARE_SECONDS: Final = 2.0
METADATA_COMPARE_RETRY_SECONDS: Final = 0.1
# A node that joined anew joins anew again: so many predecessors are looked through for its topics.
NODE_SUCCESSORS_MAX: Final = 100
# A topic that is taken over from a removed node goes on so far behind everything that is known of it: no log holds so
# many messages that are in no table (at 16 bytes each they would take 16 TiB), and 2^22 takeovers fit below OFFSET_MAX.
TAKEOVER_OFFSETS: Final = 2**40
# What nodes have confirmed is told to the others, and written down, so long after it changed: one write for a burst.
METADATA_PROMISES_SECONDS: Final = 1.0
# Nodes whose confirmations are written down: more than ever vote, and they fit the first record of a file.
METADATA_PROMISES_MAX: Final = 12
# How often a node looks whether its cluster was replaced by another one on the same warehouse: one small read.
WAREHOUSE_FENCE_LOOK_SECONDS: Final = 5.0
# As long as it could not look at all: nothing is written to the warehouse until then.
WAREHOUSE_FENCE_RETRY_SECONDS: Final = 1.0
# The first look of a process that just started: a writer waits so long for it, and the node is not ready meanwhile.
WAREHOUSE_FENCE_WAIT_SECONDS: Final = 10.0
# An object of the fence names one cluster.
WAREHOUSE_FENCE_BYTES_MAX: Final = 4096
# A node that closes waits so long for the others.
METADATA_CLOSE_SECONDS_MAX: Final = 2.0
# After an expiry or a file was refused, the next try comes this much later.
METADATA_RETRY_SECONDS: Final = 1.0

# --- catalog ----------------------------------------------------------------------------------------------------------
# A metadata file is read, held and written as a whole; 1,000 snapshots are 0.7 MB of it.
CATALOG_DOCUMENT_BYTES_MAX: Final = 64 * MIB
# A request: a schema of some thousand columns is below a megabyte.
CATALOG_BODY_BYTES_MAX: Final = 8 * MIB
# Bearer tokens of the catalog: each is compared at each request. Shorter ones can be guessed.
CATALOG_TOKENS_MAX: Final = 100
CATALOG_TOKEN_CHARACTERS_MIN: Final = 16
# Places of tables that are kept in memory, by metadata file: some 200 bytes each.
TABLE_PLACES_MAX: Final = 50_000
# A level of a namespace, or a name: longer ones make no directory. Several of the longest do not fit one key.
CATALOG_NAME_BYTES_MAX: Final = 512
CATALOG_LEVELS_MAX: Final = 32
# A location: as long as a path may be on Linux. A part of one that we make: a name of a file is at most 255 bytes.
CATALOG_LOCATION_BYTES_MAX: Final = 4 * KIB
CATALOG_PATH_PART_MAX: Final = 100
# How long a deleted topic can come back. The records of one are small: names, cursors.
UNDELETE_GRACE_MS_DEFAULT: Final = 7 * 24 * 3_600_000
UNDELETE_GRACE_MS_MAX: Final = 365 * 24 * 3_600_000
# Files that a restore copies at the same time, those included that wait for the disk's sync or for a bucket.
RESTORE_FILES_AT_ONCE: Final = 8
# Definitions of schemas in one call: below LOCAL_CALL_BYTES_MAX.
RESTORE_DEFINITIONS_AT_ONCE: Final = 32
# Names and windows of producers in one call of a restore, 64 batches in each window: below LOCAL_CALL_BYTES_MAX.
RESTORE_WINDOWS_AT_ONCE: Final = 1_000
# A restore in place waits so long for the lake process, which drops the table of the topic that was replaced.
RESTORE_ADOPTION_ATTEMPTS: Final = 120
RESTORE_ADOPTION_SECONDS: Final = 0.5
# How long a restore that was interrupted can be continued.
RESTORE_AGE_MS: Final = 30 * 24 * 3_600_000
# The name of a view of the lake, in a path: the longest is a tag or the id of a backup, with its kind before it.
CATALOG_VIEW_NAME_LENGTH_MAX: Final = 160
# Items of one page when the client does not say, and at most.
CATALOG_PAGE_DEFAULT: Final = 1_000
CATALOG_PAGE_MAX: Final = 10_000
# A commit that others were faster than is judged again so often before it is a conflict.
CATALOG_ATTEMPTS_MAX: Final = 16
# An outcome that is not known is asked for so long; engines wait a minute for an answer.
CATALOG_RESOLVE_SECONDS_MAX: Final = 20.0
CATALOG_RESOLVE_RETRY_SECONDS: Final = 0.1
# How long a request that names itself (Idempotency-Key) is remembered. At 200 of them in a second this is a tenth of
# the keys that the metadata store holds.
CATALOG_REQUEST_TTL_MS: Final = 600_000
# Documents of tables and views in memory, by their bytes in files; as objects they take about four times that.
CATALOG_CACHE_BYTES_DEFAULT: Final = 64 * MIB
# Tables whose pointer is remembered from our own last commit: at 2 KB each, some megabytes.
CATALOG_REMEMBERED_MAX: Final = 4_096
# Metadata files of one transaction that are written at the same time.
CATALOG_WRITES_AT_ONCE: Final = 16
# A metadata file of so many bytes at most is written and synced on the loop while that takes less than this on average
# and no other request is waiting.
CATALOG_INLINE_BYTES_MAX: Final = 256 * KIB
CATALOG_INLINE_BELOW_NS: Final = 1_000_000
# Between two syncs of a whole disk that producers write to: so many times as long as the last one took, so that less
# than one ack in a hundred meets one or the commits that it lets go (about four do, in the 20 ms behind its begin); and
# at most so long, because a sync may take long once, and engines wait for it.
CATALOG_SYNC_REST_TIMES: Final = 100
CATALOG_SYNC_REST_NS_MAX: Final = 200_000_000
# Tables of one transaction: two operations each, one for the lease. Where each lets go of snapshots it is twice that,
# and too many are refused: the pipeline brings COMMIT_TABLES_MAX at once.
CATALOG_TRANSACTION_TABLES_MAX: Final = 500
# Structs, lists and maps inside each other, and fields in all: both are walked in Python for each change of a schema.
CATALOG_TYPE_DEPTH_MAX: Final = 64
CATALOG_SCHEMA_FIELDS_MAX: Final = 100_000
# Updates and requirements of one commit: an expiry of Java's library sends one for each snapshot.
CATALOG_UPDATES_MAX: Final = 20_000
CATALOG_REQUIREMENTS_MAX: Final = 1_000
# Iceberg's readers allow clocks to differ by a minute, and refuse a file in which they differ by more.
CATALOG_CLOCK_SKEW_MS: Final = 60_000
# How far one snapshot may be ahead of the table's sequence numbers and row ids. 64 bits hold two thousand million such
# leaps, and 30,000 such. A table that is copied with its history begins where that one was.
CATALOG_SEQUENCE_LEAP_MAX: Final = 2**32
CATALOG_ROW_LEAP_MAX: Final = 2**48
# The same for the numbers of a view's versions, of which 32 bits hold 30,000 such.
CATALOG_VIEW_VERSION_LEAP_MAX: Final = 2**16
# Metadata files named in a metadata file unless the table says otherwise: Iceberg's default.
CATALOG_METADATA_LOG_DEFAULT: Final = 100
# Rounds remembered beside a table's pointer (hazard 14): a driver that was cut off asks again within a few of them.
CATALOG_ROUNDS_KEPT: Final = 64
# Rewrites remembered beside a table's pointer (hazard 75). They have a list of their own, because rounds, which come
# every few seconds, would soon push a rewrite out of a common one. One driver sends them one after the other.
CATALOG_REWRITES_KEPT: Final = 16
# Files that one rewrite replaces, and files that it adds: its requirement names each of them, within the body of a
# request, and the catalog reads their manifests for every attempt.
CATALOG_REWRITE_FILES_MAX: Final = 10_000
# Runs of a shard that are remembered; only the last one is open, the others tell where owners changed.
CATALOG_RUNS_PER_SHARD_MAX: Final = 8
# Removals of rows by other engines that are told one by one: they stand in the summary of every snapshot behind them.
CATALOG_REMOVALS_KEPT: Final = 16
# How long a file stays after nothing names it any more (hazard 23): engines and other nodes read what they know of.
CATALOG_FILE_GRACE_MS: Final = 3_600_000
# Records of retired metadata files per table: an hour of a commit each second. A table that commits more often
# overwrites its oldest, whose files the scan for orphans finds after the next start.
CATALOG_RETIRED_SLOTS: Final = 4_096
# Names of retired files in one record, below METADATA_VALUE_BYTES_MAX; more are found by the scan for orphans, too.
CATALOG_RETIRED_BYTES_MAX: Final = 48 * KIB
# Records that the clean-up deletes in one transaction.
CATALOG_RETIRED_BATCH: Final = 100
# Condemned files of a table: records below METADATA_VALUE_BYTES_MAX, and so many of them. What does not fit is found
# again by the next listing, or waits in the memory of the driver.
CONDEMNED_RECORD_BYTES: Final = 48 * KIB
CONDEMNED_RECORD_FILES: Final = 1_000
CONDEMNED_RECORDS_MAX: Final = 64
# How long removed files of other writers are remembered: a commit that adds one is refused.
CONDEMNED_REMEMBERED_MS: Final = 30 * 24 * 3_600_000
# A pass over the records of retired files lists all of them: the next one comes no sooner.
CATALOG_RETIRED_PAUSE_MS: Final = 60_000
# Purged tables of one look at all the others; manifests that are known to name nothing of other tables: 20 MB.
CATALOG_PURGES_AT_ONCE: Final = 16
CATALOG_MANIFESTS_REMEMBERED: Final = 100_000
# The background pauses after so many files; what failed is tried again after a minute, then after up to an hour.
CATALOG_UPKEEP_FILES_AT_ONCE: Final = 200
CATALOG_UPKEEP_PAUSE_SECONDS: Final = 0.1
CATALOG_UPKEEP_RETRY_SECONDS: Final = 60.0
# Versions of a view that are kept unless the view says otherwise: Iceberg's default.
CATALOG_VIEW_VERSIONS_DEFAULT: Final = 10

# --- commits of the pipeline ------------------------------------------------------------------------------------------
# So many manifests of about the same size become one of the next size (pipeline/commit/manifest_merge.py).
MANIFESTS_MERGED: Final = 8
# Files in one manifest that we write: what is above is not merged any more. A query reads 1 MB for it.
MANIFEST_FILES_MAX: Final = 4_096
# Entries of our manifests in memory, about 600 bytes each: those of the newest are merged next.
MANIFEST_ENTRIES_KEPT: Final = 20_000
# Heads of manifests, about 10 KB each: one for each table that is written.
MANIFEST_LAYOUTS_KEPT: Final = 2_048
# Expiry (hazard 23): what is older goes with the next commit; what is younger than the second one never does; in
# between it goes when a table has more snapshots than this, which are 350 KB of its metadata file.
SNAPSHOT_AGE_MS: Final = 30 * 60_000
SNAPSHOT_AGE_MS_MIN: Final = 10 * 60_000
SNAPSHOTS_MAX: Final = 500
# What snapshots held that have gone is kept in blocks of so many marks (docs/adr/0036): 3,072 of them, which is four
# hours of commits every 5 s, and an hour every second. A topic with one shard takes 70 KB of the metadata store's
# memory for it, once it has made so many. With many shards a block is full with so many ends of shards, 4 KB; then the
# map is shorter, and 250 KB at most.
SNAPSHOT_MARKS_PER_BLOCK: Final = 64
SNAPSHOT_BLOCK_ENDS: Final = 1_024
SNAPSHOT_BLOCKS_MAX: Final = 48
# How far time travel reaches back by tags: two days by the hour, a month by the day.
HOURLY_TAGS_MS_DEFAULT: Final = 48 * 3_600_000
DAILY_TAGS_MS_DEFAULT: Final = 30 * 24 * 3_600_000
# What tags of the pipeline may keep of one table; the oldest go first. A terabyte that is compacted once a day is named
# by them many times, and counted once.
TAG_BYTES_DEFAULT: Final = 256 * GIB
# A table is looked at for expiry so often; after its change was overtaken by another commit again so soon. The first
# look comes after a start of the pipeline is over.
EXPIRY_LOOK_MS: Final = 3_600_000
EXPIRY_RETRY_MS: Final = 300_000
EXPIRY_FIRST_MS: Final = 600_000
# Tables that one look takes, and records of one page of the list of tables.
EXPIRY_TABLES_AT_ONCE: Final = 16
EXPIRY_PAGE: Final = 1_000
# Ten years.
TAGS_MS_MAX: Final = 3_650 * 24 * 3_600_000
# The lease of the driver, renewed at a third of it: a driver that dies elsewhere is followed after so long.
PIPELINE_LEASE_TTL_MS: Final = 15_000
# Log files are held for a round, and the hold renewed at a third of this.
PIPELINE_HOLD_MS: Final = 60_000
# What failed is tried again after so long, then after twice that, up to the second one.
PIPELINE_RETRY_SECONDS_MIN: Final = 0.2
PIPELINE_RETRY_SECONDS_MAX: Final = 10.0
# A background job that failed, or its work on one table, is left alone for so long, then for twice that, up to the
# second one: a job that fails each time costs a few attempts in an hour, and is tried again soon after it was mended.
JOB_RETRY_SECONDS_MIN: Final = 1.0
JOB_RETRY_SECONDS_MAX: Final = 600.0
# Failures of jobs that a driver remembers, one for each job and table; the oldest is forgotten, and its work tried.
JOB_FAILURES_MAX: Final = 10_000
JOB_ERROR_CHARACTERS_MAX: Final = 500
# While messages wait and none is due, the driver looks so often whether there are enough of them.
PIPELINE_LOOK_SECONDS: Final = 1.0
# A driver that is asked to stop while it commits has so long for it.
PIPELINE_STOP_SECONDS: Final = 2.0
# A topic that waits for a decision of an operator is checked again after this long.
TOPIC_HALT_SECONDS: Final = 15.0
# One whose part of rounds fails waits PIPELINE_RETRY_SECONDS_MIN, then twice that, up to this. A failing topic may cost
# a whole round each time, a second or two: so it takes a small share of them, and is found mended within half a minute.
TOPIC_RETRY_SECONDS_MAX: Final = 30.0
# Data files of rounds without a known outcome that a driver remembers, to bring them again: a few KiB for each. Of what
# is beyond, the files are written again.
OPEN_ROUND_FILES_MAX: Final = 4_000
# Stopped topics that are told by name: their reasons are sentences, and all of it is one small document.
REPORTED_TOPICS_MAX: Final = 50
# Tables that are loaded at the same time.
TABLES_OPENED_AT_ONCE: Final = 16
# Tables of one request: the catalog's own bound is higher, but then a transaction nears its 1 MiB.
COMMIT_TABLES_MAX: Final = 200
# Files that are looked at together behind a commit.
FILES_LOOKED_AT_ONCE: Final = 64
# Snapshots of a table whose files are looked at before a floor follows a commit of another driver: its last commit, and
# a few of others behind it.
SNAPSHOTS_LOOKED_AT: Final = 4
# Tables of new topics that are made in one transaction: eight operations each, and two for each namespace, stay below
# METADATA_TXN_OPERATIONS_MAX.
NEW_TABLES_MAX: Final = 100
# A table that others commit to all the time is left to the next round after so many tries.
COMMIT_ATTEMPTS_MAX: Final = 8
# How often a table is checked for unreferenced files while something is committed to it. A snapshot lives longer.
CLEAN_UP_LOOK_MS: Final = 5 * 60_000
# Its folders are looked through once in the life of a driver, and again after so long: others may have been cut off.
CLEAN_UP_FOLDERS_MS: Final = 24 * 3_600_000
# What failed is tried again after so long.
CLEAN_UP_RETRY_MS: Final = 60_000
# What one round does of it: steps of a file that is read, or some that are removed at once; and how long it may take.
CLEAN_UP_STEPS: Final = 500
CLEAN_UP_SECONDS: Final = 0.2
CLEAN_UP_FILES_AT_ONCE: Final = 16
# Manifest lists that are compared with the table together, and those that wait for it: an hour of five in a second.
CLEAN_UP_LISTS_AT_ONCE: Final = 256
CLEAN_UP_WAITING_MAX: Final = 20_000
# What lists name, about 300 bytes each: those of the live snapshots and of an hour of expired ones, at ten commits in a
# second, which is what a round is stretched to.
CLEAN_UP_LISTS_REMEMBERED: Final = 64_000
CLEAN_UP_MANIFESTS_REMEMBERED: Final = 200_000
# The delay can be set from a minute, for a table that no other engine reads, up to 30 days.
CLEAN_UP_DELAY_MS_MIN: Final = 60_000
CLEAN_UP_DELAY_MS_MAX: Final = 30 * 24 * 3_600_000

# --- catalogs and object stores elsewhere -----------------------------------------------------------------------------
# One answer: longer than a slow commit, shorter than a user's patience. A call with its retries: four such answers.
STORAGE_REQUEST_TIMEOUT_MS_DEFAULT: Final = 15_000
STORAGE_REQUEST_TIMEOUT_MS_MIN: Final = 50
STORAGE_REQUEST_TIMEOUT_MS_MAX: Final = 600_000
STORAGE_CALL_TIMEOUTS: Final = 4
# Repeats of a call, the first pause before one and the longest: half of them fit a second, as the restart of a server.
STORAGE_ATTEMPTS_MAX: Final = 8
STORAGE_RETRY_SECONDS_MIN: Final = 0.05
STORAGE_RETRY_SECONDS_MAX: Final = 5.0
# Failures in a row that open the circuit breaker, and for how long: doubled each time, up to the last.
BREAKER_FAILURES_MAX: Final = 5
BREAKER_OPEN_SECONDS_MIN: Final = 1.0
BREAKER_OPEN_SECONDS_MAX: Final = 60.0
# A token is fetched again this much before its end, so that no request meets the end on its way.
TOKEN_MARGIN_SECONDS: Final = 30.0
# Keys of an assumed role are fetched again this much before their end.
ROLE_KEYS_MARGIN_MS: Final = 5 * 60_000
# Keys of the process (its environment, the role of its machine) are looked for again after so long.
PROCESS_KEYS_MS: Final = 60_000
# Keys for one table: the shortest time that AWS allows, which bounds how long a revoked right still opens files. They
# are handed out again for a third of it, so that a client can use them for ten minutes at least (hazard 111).
VENDED_KEYS_SECONDS: Final = 900
VENDED_KEYS_REUSED_SECONDS: Final = 300.0
VENDED_KEYS_KEPT_MAX: Final = 10_000
# Tables of a round for which keys are asked for at the same time: AWS answers some hundred requests in a second.
TASK_KEYS_AT_ONCE: Final = 16
# Of AWS: a longer policy of a session is refused.
SESSION_POLICY_CHARACTERS_MAX: Final = 2_048
STS_ANSWER_BYTES_MAX: Final = 64 * KIB
# Answers about the lock of an object have a few hundred bytes.
OBJECT_LOCK_ANSWER_BYTES_MAX: Final = 64 * KIB
# A request that a client lets the catalog sign: S3 bounds keys at 1 KiB, each byte of which may be escaped.
SIGNED_URI_BYTES_MAX: Final = 8 * KIB
SIGNED_HEADERS_MAX: Final = 100

# --- reads ----------------------------------------------------------------------------------------------------------
# The newest sections of all shards in memory, so that consumers that are caught up need no disk.
TAIL_BYTES_DEFAULT: Final = 64 * MIB
TAIL_TTL_MS_MAX: Final = 86_400_000
# What a section in that memory costs beside its bytes: 213 were measured.
TAIL_CHUNK_BYTES: Final = 256
# A read for a consumer that failed is tried again after this time: often enough for a disk that recovers.
READ_RETRY_MS: Final = 5_000
# A read without an answer for so long is told to the consumer: a busy machine answers within a second.
READ_STALLED_MS: Final = 3_000
# Where a table that cannot be read has ended all consumers, its next message is tried so often, to know when it can be.
READ_PROBE_MS: Final = 30_000
# Readers of a topic that cannot go on which `verify` names; the others are counted.
STALLED_READERS_NAMED_MAX: Final = 5
# One read returns at most this many bytes (or one section, when that is larger).
READ_BYTES_DEFAULT: Final = 1 * MIB
# Blocks that were read lately and whose messages are handed out one by one: of all subscriptions together, two for each
# of 32 that catch up at a time. How old one may be: as for answers of the lake process (SCAN_NEAR_SECONDS_MAX).
READ_AHEAD_BYTES_MAX: Final = 64 * MIB
READ_AHEAD_SECONDS_MAX: Final = 5.0
# And at most this many sections: about a millisecond of Python beside the loop (hazards 18, 35).
READ_SECTIONS_MAX: Final = 256
# A read holds its file at most this long; then its pin is broken and the reader resolves its position again (33).
PIN_SECONDS_MAX: Final = 30.0
# Reads run in this many threads of their own, off the loop (hazard 35).
READ_THREADS: Final = 2
# --- reads of tables (the lake process)
# Questions of the broker that are with the lake process at a time; others wait in the broker. Threads that read.
SCANS_IN_FLIGHT_MAX: Final = 16
SCAN_THREADS: Final = 2
# Answers that the broker holds near their readers, of all of them together: as many last ones, and as many that are
# asked for ahead. How old one may be: rows deleted from a table are not handed out much longer, and the next
# one counts from when it came, since a slow store may take as long.
SCANS_NEAR_MAX: Final = 16
SCAN_NEAR_SECONDS_MAX: Final = 5.0
# How long an answer may take: opening a table of many files in an object store, and decoding a row group of each.
SCAN_SECONDS_MAX: Final = 60.0
# How long a question waits for a lake process that is away: it starts again in about two seconds.
SCAN_AWAY_SECONDS_MAX: Final = 10.0
# How long `topic describe` looks for where the history of a topic begins: a person waits, and the rest is known.
HISTORY_START_SECONDS_MAX: Final = 5.0
# What a question asks for at least: each costs both processes about a millisecond beside its bytes.
SCAN_READ_BYTES: Final = 2 * MIB
# An answer comes in parts of this size, so that it fits a call whatever the largest message is.
SCAN_PART_BYTES: Final = 2 * MIB
# What an answer may come to: what was asked for, and one message of the largest size with its section.
SCAN_ANSWER_BYTES_MAX: Final = SCAN_READ_BYTES + MESSAGE_BYTES_MAX + MIB
# What the last ones near readers may come to together, what is left of them, and the next ones that have come: each
# sixteen of the usual size, or one of the largest messages.
SCANS_NEAR_BYTES_MAX: Final = max(SCANS_NEAR_MAX * SCAN_READ_BYTES, SCAN_ANSWER_BYTES_MAX)
# A row group that decodes to more is read in batches of rows, again for each window of offsets (hazard 22).
SCAN_GROUP_BYTES_MAX: Final = 64 * MIB
SCAN_BATCH_ROWS: Final = 16_384
SCAN_BATCH_BYTES: Final = 8 * MIB
# What a reader holds of files that overlap.
SCAN_WINDOW_BYTES: Final = 64 * MIB
# Windows without a row that one question goes through; then it is told how far there is none.
SCAN_WINDOWS_MAX: Final = 64
# Places of rows in files that a reply names, and that the broker remembers of a shard, as hints for its cursors. Most
# replies have rows of one file; with tiny files some cursors have no hint. About 300 bytes each.
SCAN_ROW_RANGES_MAX: Final = 32
# How often a table is planned for one question: files that are gone were compacted or expired away, thrice at most.
SCAN_PLANS_MAX: Final = 4
# Rests of windows that wait for the read that continues there.
SCAN_KEPT_MAX: Final = 8
# Lists of deleted rows and bounds of row groups: a few KiB each.
SCAN_FOOTERS_MAX: Final = 512
# Row groups of the footers that are held, and of what is known about them: about 10 KiB each.
SCAN_FOOTER_GROUPS_MAX: Final = 4_096
# Row groups of a file that follow each other and are read together: one request to an object store.
SCAN_FETCH_BYTES: Final = 16 * MIB
# Files of deletes by value that are held decoded (about 200 MB for the largest ones), and the rows of all that apply to
# one data file. A table with more has to be compacted before it can be read.
SCAN_VALUE_DELETES_MAX: Final = 8
SCAN_VALUE_DELETE_ROWS_MAX: Final = 200_000
# A deletion vector: a bitmap of a data file's rows, 8 KiB for each 65,536 of them.
SCAN_VECTOR_BYTES_MAX: Final = 64 * MIB
# Manifests that are held as lists of files, a few hundred bytes for each; and tables whose files are known.
SCAN_MANIFESTS_MAX: Final = 4_096
SCAN_VIEWS_MAX: Final = 1_024
# How long a table in another catalog, which reports no changes, is believed to be unchanged: rows that an engine
# deletes there are handed out for so long, and each table that is read costs the catalog one question in that time.
SCAN_FOREIGN_VIEW_SECONDS: Final = 5.0
# `verify`: files that it looks at at once (in an object store each is a wait), what it says in one piece, how long a
# piece may wait for more, and the findings of a table that one document shows (a stream shows all).
VERIFY_FILES_AT_ONCE: Final = 8
# Files that wait for their turn; and files of snapshots other than main's that it looks for, some hundred bytes each.
VERIFY_FILES_ASKED: Final = 1_024
VERIFY_OTHER_FILES_MAX: Final = 250_000
VERIFY_LINES_MAX: Final = 256
VERIFY_LINES_SECONDS: Final = 0.5
VERIFY_FINDINGS_SHOWN: Final = 1_000
# Decoded row groups that were read lately: a minute of one topic at a hundred megabytes in a minute.
GROUP_CACHE_BYTES_DEFAULT: Final = 128 * MIB
GROUP_CACHE_TTL_MS_DEFAULT: Final = 60_000
GROUP_CACHE_TTL_MS_MAX: Final = 86_400_000

# A follower gets at most this many bytes of records per step.
FOLLOW_BYTES_MAX: Final = 8 * MIB

# --- the pipeline -----------------------------------------------------------------------------------------------------
# A reader of a log file may begin at a record about every so many bytes: a task takes some of these pieces.
MARK_STRIDE_BYTES: Final = 1 * MIB
# One answer about what is in no table: a round takes no more topics than this, and the answer stays a document.
BACKLOG_TOPICS_MAX: Final = 1_024
BACKLOG_STRETCHES_MAX: Final = 8_192
# A topic that was told for so long without a row more in its table leaves the room to others: several times as long as
# the age limit of as many topics as are told, and the rounds before one's turn.
BACKLOG_STUCK_SECONDS: Final = 300.0
BACKLOG_FILES_MAX: Final = 256
# Topics that a driver names because they stand still, so that they take no room in the answer: 64 KiB of a request.
# What is beyond is told like any other.
BACKLOG_PASSED_OVER_MAX: Final = 8_192
# Topics that are passed over may have news all the time: so often it is looked whether others have some.
BACKLOG_LOOK_SECONDS: Final = 0.5
# Declared gaps of one shard in such an answer, those that its table meets next: a start makes at most one.
BACKLOG_GAPS_MAX: Final = 64
# Shards that are looked at between two turns of the loop: below half a millisecond.
BACKLOG_SLICE_SHARDS: Final = 512
# Floors that are moved between two turns of the loop.
FLOORS_SLICE: Final = 64
# How long a driver may wait in one call. It asks again; a broker that stops does not wait for it.
BACKLOG_WAIT_MS_MAX: Final = 60_000
# Bytes of a log file in one answer over HTTP: the loop copies them twice, in less than a millisecond.
LOG_RANGE_BYTES_MAX: Final = 1 * MIB
# Files whose messages are all in tables stay for a while (hazard 21): mistakes are noticed within minutes.
WARM_MS_DEFAULT: Final = 600_000
WARM_MS_MAX: Final = 30 * 24 * 3600 * 1000
WARM_BYTES_DEFAULT: Final = 1 * GIB
# The spill log (hazard 8). A topic whose table takes nothing for so long is stuck: rounds and retries take seconds.
SPILL_STUCK_SECONDS: Final = 60.0
# Below half of the quota the room that it holds is not needed; and a driver is told of 256 files at most, so those that
# one topic alone holds must stay far fewer.
SPILL_QUOTA_SHARE: Final = 0.5
SPILL_HELD_FILES_MAX: Final = 64
# Copying pays when at least this share of the files becomes free.
SPILL_GAIN_SHARE: Final = 0.25
# Copied in one step, about: each step frees files before the next one needs room.
SPILL_STEP_BYTES: Final = 256 * MIB
# Under pressure: how often to check whether a topic is stuck.
SPILL_LOOK_SECONDS: Final = 5.0
# Leases of log files: one for each round, and a few that were left to end by themselves.
LEASES_MAX: Final = 64
# A lease that is not renewed ends, so that a dead driver does not hold the log.
LEASE_TTL_MS_MAX: Final = 600_000
# Positions in one call, so that it stays below the values of a call; for more, call again.
PIPELINE_POSITIONS_MAX: Final = 1_000
# What the driver says of itself.
PIPELINE_STATE_BYTES_MAX: Final = 64 * KIB
# And nothing for so long is said with it.
PIPELINE_SILENT_SECONDS: Final = 120.0

# --- checkpoints ----------------------------------------------------------------------------------------------------
# The newest and the one before it: a torn newest costs more scanning, never state (hazard 4).
CHECKPOINTS_KEPT: Final = 2
# Producer windows encoded at once: 64 batches each, about 1 ms of the loop.
CHECKPOINT_SLICE_WINDOWS: Final = 64
# The same for the epochs of producers.
CHECKPOINT_SLICE_EPOCHS: Final = 4_096
# Room kept for a checkpoint: what frees the files of a full disk must itself fit on it (hazard 16).
CHECKPOINT_RESERVE_BYTES: Final = 1 * MIB
# After this many bytes of log a new checkpoint is written, so that a start scans at most about this much.
CHECKPOINT_EVERY_BYTES: Final = 256 * MIB
# The same for a log of tiny records, of which a start reads about 300,000 in a second.
CHECKPOINT_EVERY_RECORDS: Final = 100_000

# --- process --------------------------------------------------------------------------------------------------------
# New container objects between two looks for cyclic garbage: a few megabytes at most, one look in some seconds of load.
GARBAGE_OBJECTS: Final = 50_000

# Children give way to the broker: whatever they do, acks come first. Where brokers take every core, a lake process
# still gets a quarter of one, for people and engines wait for it, and a pipeline a tenth: 100,000 messages a second.
LAKE_NICENESS: Final = 5
PIPELINE_NICENESS: Final = 10
# The shortest time slice that the kernel gives (runtime/time_slice.py): a tick of a broker is about as long.
BROKER_SLICE_NS: Final = 100_000
# A disk with less free space than this share of it, and than so many bytes, is nearly full: there is some time to act.
DISK_LOW_SHARE: Final = 0.05
DISK_LOW_BYTES_MAX: Final = 5 * GIB
# A quota that follows the free space and is below this share of what the empty disk would give has fallen.
QUOTA_FALLEN_SHARE: Final = 0.1
# A certificate that ends within so many days is told: renewals run monthly at the latest, and a week is left to act.
CERTIFICATE_DAYS_MIN: Final = 21
# How often the files of certificates are looked at: three calls of stat, and a renewal has weeks.
TLS_FILES_SECONDS: Final = 5.0
# Connections of a listener whose TLS handshake is not done: each holds some 20 KiB, and a client needs two round trips.
TLS_HALF_OPEN_MAX: Final = 256
# A header of the PROXY protocol: addresses are 36 bytes at most, the rest are extensions, such as the TLS of a client.
PROXY_HEADER_BYTES_MAX: Final = 2 * KIB
# A client on a slow network shakes hands within a second.
TLS_HANDSHAKE_SECONDS_MAX: Final = 5.0
# A command that fetches one from a vault takes seconds.
SECRET_COMMAND_SECONDS_MAX: Final = 30
# A PEM file with a chain has a few KiB.
CERTIFICATE_FILE_BYTES_MAX: Final = MIB
# A child that ends is started again after this, doubling up to the second; from the start again after a while of good
# work.
CHILD_RETRY_SECONDS_MIN: Final = 0.5
CHILD_RETRY_SECONDS_MAX: Final = 30.0
CHILD_STEADY_SECONDS: Final = 60.0
# A child that was asked to stop and does not is killed after this: a stop of the node has 10 s.
CHILD_STOP_SECONDS: Final = 4.0
# The broker asks its lake process over HTTP whether it serves, when readiness is asked for: it must answer within the
# first; readiness waits for the answer up to the second (a probe of Kubernetes has one second in all), and asks again
# when the last time is longer ago than the third.
PROBE_SECONDS_MAX: Final = 3.0
PROBE_WAIT_SECONDS: Final = 0.3
PROBE_AGE_SECONDS: Final = 1.0
# What a child says after its first line is not kept.
CHILD_READ_BYTES: Final = 4 * KIB

# --- Java, PySpark, Iceberg's jar -----------------------------------------------------------------------------------
# `java -version` answers in a tenth of a second. 64 MB come in this time where a line gives 100 kB/s.
JAVA_VERSION_SECONDS_MAX: Final = 20
FETCH_SECONDS_MAX: Final = 900
FETCH_FORGOTTEN_SECONDS: Final = 24 * 3600

# --- rounds of the pipeline -----------------------------------------------------------------------------------------
# So many topics are committed at their own interval; with more of them each waits longer in proportion, so that files
# and commits in a second stay what they are at this number (hazard 24).
ROUND_FRESH_TOPICS: Final = 50
# A topic that has waited for this share of its time comes along with one that is due: one job instead of two.
ROUND_COMPANY_PERCENT: Final = 75
# Bytes of messages that a round takes for each of its tasks: a second of work, and what a task holds in memory.
ROUND_TASK_BYTES_MAX: Final = 128 * MIB
# Below this a second task costs more than it saves (10 ms against 8 ns for each byte).
ROUND_TASK_BYTES_MIN: Final = 4 * MIB
# What a file costs beside its bytes, in bytes of the same time: 2 ms (measured).
ROUND_FILE_COST_BYTES: Final = 256 * KIB
# Files and commits of one round: seconds of CPU, after which others are due again.
ROUND_FILES_MAX: Final = 2_000
ROUND_COMMITS_MAX: Final = 1_000
# A topic with less than this in a round is gathered from all tasks into one file. More than this makes files that are
# large enough, and every byte of a shuffle goes through Java.
ROUND_GATHER_BYTES_MAX: Final = 8 * MIB
# Partition values of one topic in one task: each is a file. Of more than that the front is written.
ROUND_PARTITIONS_MAX: Final = 1_000
# Files that are synced one by one, each with its folder. More of them share one sync of their disk, which has to write
# what others have put on it, too.
FILES_SYNCED_APART_MAX: Final = 16
# Folders of data files that a worker need not see to again: a path of each, for as many tables as a round has.
DATA_FOLDERS_REMEMBERED_MAX: Final = 10_000
# Syncs of data files that one task has under way, and uploads to an object store.
DATA_FILE_SYNC_THREADS: Final = 8
DATA_FILE_UPLOADS: Final = 8
# A task that asks a broker for a piece of its log waits so long for it.
LOG_PIECE_SECONDS_MAX: Final = 30
# Java ends by itself when its input ends, after it has written the archive of its classes; then it is killed.
SPARK_END_SECONDS_MAX: Final = 60
# A line of what it writes on stderr; a longer one is several.
SPARK_LINE_BYTES_MAX: Final = 4 * KIB
# Archives of Spark's classes in the cache: one for each place of PySpark, 60 MB each.
CLASS_ARCHIVES_KEPT: Final = 4
# Iceberg's own default of `write.target-file-size-bytes`.
DATA_FILE_BYTES_TARGET: Final = 512 * MIB
# `partitioning=auto`: a smaller table is planned by its manifests as fast without partitions.
AUTO_PARTITIONED_TABLE_BYTES: Final = 16 * GIB
# What a partition is to hold at least, two files of the target size: smaller ones would make files of their own.
AUTO_PARTITION_BYTES: Final = 1 * GIB
# How often its table is looked at, when it has messages: a read of the catalog.
TABLE_GROWTH_CHECK_SECONDS: Final = 3600
# What a topic's policy may ask for: smaller files cost more to plan than to read, and a task holds one in memory.
TARGET_FILE_BYTES_MIN: Final = 64 * KIB
TARGET_FILE_BYTES_MAX: Final = 4 * GIB

# --- MQTT topics in tables (docs/adr/0061) --------------------------------------------------------------------------
# Levels of a topic that have a column, and that the learned structure follows: most deployments use up to six.
MQTT_LEVEL_COLUMNS: Final = 8
# Literal edges of a node at each depth before all others share one edge; the last number holds for all deeper levels.
STRUCTURE_THRESHOLDS: Final = (100, 10)
# A level that is longer is not learned: a few hostile topics must not fill the structure.
STRUCTURE_TOKEN_BYTES_MAX: Final = 64
# A structure is one value of the metadata store (METADATA_VALUE_BYTES_MAX), and travels with every task of a round.
STRUCTURE_NODES_MAX: Final = 4_096
STRUCTURE_BYTES_MAX: Final = 48 * KIB
# Topics that a task reports for the structure to learn, and that it learns at a time: a millisecond each time.
LEARNED_TOPICS_MAX: Final = 1_024
LEARNED_AT_ONCE: Final = 256
# What a file keeps together in the order of its streams: a part that replay by offset holds decoded at once.
CLUSTER_BYTES: Final = 32 * MIB
# Its row groups: a filter reads whole ones, and each costs about a millisecond and 3 KiB.
CLUSTER_GROUPS_MAX: Final = 32
CLUSTER_GROUP_BYTES_MIN: Final = 256 * KIB
# A group of files that compaction makes one of, as they are stored; a file of half of it is finished.
COMPACTION_GROUP_BYTES: Final = 64 * MIB
# The rows of a group in the memory of a task, which holds them twice while it sorts: four windows of a reader (hazard
# 94). A group that decodes to more is cut.
COMPACTION_TASK_BYTES: Final = 4 * SCAN_WINDOW_BYTES
# Files of a group: each is a request to the storage, and a name in the requirement of the commit.
COMPACTION_GROUP_FILES_MAX: Final = 1_000
# A file that a task reads as a whole: those of the pipeline that are smaller than half a group.
COMPACTION_FILE_BYTES_MAX: Final = 512 * MIB
# Small files next to one another that are worth a rewrite while messages arrive: fewer cost more than they save.
COMPACTION_FILES_MIN: Final = 8
# Column chunks that a compaction copies without decoding them, on average: of smaller ones there would be many pages,
# each of which costs a scan time (a twentieth more with this size, a fifth with a quarter of it).
COPIED_CHUNK_BYTES_MIN: Final = 256 * KIB
# A file of which this share is deleted is rewritten by itself: readers decode its rows for nothing.
COMPACTION_DELETED_SHARE: Final = 10
# Without messages for so long, two files are merged: nothing else would join them.
COMPACTION_IDLE_MS: Final = 10 * 60_000
# A group spans at most this share of the time for which its topic keeps rows (hazard 85).
COMPACTION_AGE_SHARES: Final = 10
# How often tables with new files are planned: each costs a look at its manifests.
COMPACTION_INTERVAL_MS: Final = 30_000
COMPACTION_INTERVAL_MS_MIN: Final = 100
# Groups of one Spark job: some seconds of work, after which they are committed.
COMPACTION_STEP_GROUPS: Final = 8
# While a job has work under way beside the rounds, an idle driver looks so often whether it is done.
JOB_LOOK_MS: Final = 200
# What an hour of compaction may take: a quarter of a core, and what that reads.
COMPACTION_CPU_SECONDS_DEFAULT: Final = 900
COMPACTION_HOUR_BYTES_DEFAULT: Final = 64 * GIB
# Groups that no task could improve, and decoded manifests, that a driver remembers.
COMPACTION_LEFT_ALONE_MAX: Final = 10_000
COMPACTION_MANIFESTS_MAX: Final = 10_000
# Tables of a request for maintenance, which is one value of the metadata store, and groups of a dry run, which the
# report of the driver carries.
MAINTENANCE_TABLES_MAX: Final = 500
MAINTENANCE_PLAN_MAX: Final = 100
# What `icestream lake health` reads: tables of a listing, files of a snapshot, and tagged snapshots of a table.
HEALTH_TABLES_MAX: Final = 100
HEALTH_FILES_MAX: Final = 100_000
HEALTH_TAGS_MAX: Final = 32
# A rewrite that another commit overtook is tried again on the table as it is then, without the groups that it hit.
COMPACTION_COMMIT_ATTEMPTS: Final = 3
# Filters of one read; a reader with more reads everything and filters by itself.
SCAN_FILTERS_MAX: Final = 64

# --- settings -------------------------------------------------------------------------------------------------------
# A settings file is read into memory as a whole; the one with every key and comment is below 16 KiB.
SETTINGS_FILE_BYTES_MAX: Final = 1 * MIB
# Contexts of the command line are listed and read as a whole by every command; people have some, scripts name brokers.
CONTEXTS_MAX: Final = 1_000
CONTEXT_NAME_CHARACTERS_MAX: Final = 100
CONTEXTS_FILE_BYTES_MAX: Final = 4 * MIB
# Header, directory entries, the topic's name, fixed columns and up to one page of padding around a single message.
RECORD_OVERHEAD_BYTES_MAX: Final = 8 * KIB
# Spares beyond this cannot be in use at once; they would only take space from the log.
SPARE_FILES_MAX: Final = 16
# `periodic` may lose what was acked in one interval: more than a minute of it is `none` by another name.
SYNC_INTERVAL_MS_DEFAULT: Final = 1_000
SYNC_INTERVAL_MS_MAX: Final = 60_000
# Shorter syncs than this are done on an idle loop; a loop that stands longer would delay the next ack by more than
# the change of threads that it saves.
INLINE_SYNC_BELOW_US_DEFAULT: Final = 1_000
INLINE_SYNC_BELOW_US_MAX: Final = 1_000_000
# What one writing task collects of one topic; a first choice, to be measured with the pipeline.
WRITER_BATCH_SIZE_DEFAULT: Final = 100_000
WRITER_BATCH_SIZE_MAX: Final = 100_000_000
WRITER_MEMORY_BYTES_DEFAULT: Final = 256 * MIB
# Five seconds from ack to table row by default. Each commit is a snapshot and a file: ten in a second is where it ends.
WRITER_FLUSH_INTERVAL_MS_DEFAULT: Final = 5_000
WRITER_FLUSH_INTERVAL_MS_MIN: Final = 100
WRITER_FLUSH_INTERVAL_MS_MAX: Final = 24 * 3600 * 1000
# A Raft group gets slower with each voter and seldom has more than nine; a list beyond this is a mistake.
SEED_NODES_MAX: Final = 32
# Commands of the metadata store over which the time that one takes is smoothed.
METADATA_SMOOTHED_OVER: Final = 16
# How long an operator's command waits for one node to say how it is, and for the cluster to do what it asks.
CLUSTER_ASK_SECONDS: Final = 2.0
CLUSTER_CHANGE_SECONDS: Final = 15.0
# A join token is used at once, to start the next node; a token that has expired is replaced by a new one.
# Nodes are few, so more tokens than seed nodes are a mistake.
JOIN_TOKEN_BYTES: Final = 32
JOIN_TOKEN_SECONDS_DEFAULT: Final = 3600
JOIN_TOKEN_SECONDS_MAX: Final = 7 * 24 * 3600
JOIN_TOKENS_MAX: Final = SEED_NODES_MAX
# States that are compared on demand are marked again after this, doubling: a node that is busy with a snapshot passes a
# mark by, and a snapshot of many keys takes seconds.
CLUSTER_MARK_SECONDS: Final = 1.0
# Seed nodes on one machine: what lies between the ports of one and the next. A node's own are up to 1 apart.
SEED_PORT_SHIFT: Final = 10

# --- Danube clients ---------------------------------------------------------------------------------------------------
# The largest message to and from a Danube client: its Python client takes 4 MiB, and a stream that brings more ends, is
# opened again at once and gets the same message again.
DANUBE_MESSAGE_BYTES_MAX_DEFAULT: Final = 4 * MIB - 64 * KIB
# What a message may grow by between its producer and its consumer: names of topic, broker and subscription, numbers.
DANUBE_DELIVERY_BYTES_EXTRA: Final = 4 * KIB
# What gRPC itself refuses, in a way that makes clients try for ever: so far above the bound that no client reaches it.
DANUBE_CALL_BYTES_MAX: Final = 4 * MESSAGE_BYTES_MAX
# Calls under way, the streams of consumers too. Each has a task.
DANUBE_CALLS_MAX: Final = 20_000
# Streams of one connection: a process with thousands of consumers has one connection.
DANUBE_STREAMS_PER_CONNECTION_MAX: Final = 4_096
# Connections at once; each takes about 20 kB. Beyond that silent and idle ones are closed.
DANUBE_CONNECTIONS_MAX: Final = 10_000
# Without the native wire: a peer that sends no HTTP/2 in this time is no client (native/src/wire has the same), and one
# without a call for so long is closed; its client opens the connection again with the next call.
DANUBE_HANDSHAKE_MS_MAX: Final = 10_000
DANUBE_IDLE_MS_MAX: Final = 300_000
# A silent client is asked whether it is there: one whose machine is gone loses its stream, and others get its messages.
DANUBE_KEEPALIVE_MS: Final = 20_000
# Bytes of messages that wait to be stored. Beyond it a call is refused, and comes again.
DANUBE_IN_FLIGHT_BYTES_MAX: Final = 64 * MIB
# A stream that cannot begin, or was taken over, ends so late: its client opens it again at once, without a pause.
DANUBE_HOLD_SECONDS: Final = 1.0
# A stream of a blocked subscription ends with the reason when nothing has come for so long: soon, because it lasts
# until an operator acts, and not so soon that a client that reopens it each time fills its log. If stored messages
# cannot be read it is CLIENT_STALL_SECONDS, as for the other clients.
DANUBE_BLOCKED_SECONDS: Final = 5.0
# A producer counts as connected so long after its last word; clients say one every 5 s.
DANUBE_PRODUCER_IDLE_MS: Final = 60_000
# A consumer that subscribed has so long to begin its stream; until then it holds its place.
DANUBE_CONSUMER_IDLE_MS: Final = 10_000
# How often these are looked at, while there are any.
DANUBE_SWEEP_SECONDS: Final = 5
# Sessions of Danube's clients, one for each credential and host; beyond it calls with a new credential are refused.
DANUBE_SESSIONS_MAX: Final = 20_000
# Messages of a stream that its socket has not taken: enough to keep it busy.
DANUBE_STREAM_MESSAGES_MAX: Final = 64
DANUBE_STREAM_BYTES_MAX: Final = 1 * MIB
# Messages that wait for the stream of a consumer that has subscribed, where nothing is delivered twice.
DANUBE_WAITING_MESSAGES_MAX: Final = 1_000
DANUBE_WAITING_BYTES_MAX: Final = 4 * MIB
# Unacked messages of one consumer: Danube's own window, and as many as it acks in DANUBE_WINDOW_MS. Its client gives no
# credit; what lies in its buffers longer than the ack time-out would be delivered again.
DANUBE_WINDOW_MIN: Final = 10
DANUBE_WINDOW_MAX: Final = 5_000
DANUBE_WINDOW_MS: Final = 2_000
DANUBE_WINDOW_STEP_MS: Final = 100
# Incarnations of a numbered producer that are remembered, so that a late message of one of them is refused (hazard 7).
DANUBE_INCARNATIONS_MAX: Final = 32
DANUBE_INCARNATION_BYTES_MAX: Final = 64

# --- schemas ----------------------------------------------------------------------------------------------------------
# A schema with some thousand fields. It is one value of the metadata store.
SCHEMA_BYTES_MAX: Final = 256 * KIB
# Versions of one subject: their list is read and written as a whole.
SCHEMA_VERSIONS_MAX: Final = 1_000
# Tags of a version, their description, their author: texts typed by people.
SCHEMA_TEXT_BYTES_MAX: Final = 4 * KIB
# Reasons why a version does not fit: enough to act on.
SCHEMA_ERRORS_MAX: Final = 50
# Steps of a comparison, and levels of it: branches within branches multiply, and the loop of the broker must not stand.
SCHEMA_STEPS_MAX: Final = 10_000
SCHEMA_DEPTH_MAX: Final = 100
# Schemas that are kept parsed, for checks of payloads.
SCHEMAS_PARSED_MAX: Final = 256

# --- security ---

# Open producers and consumers are decided again after a change of the policy, in slices between which the loop runs.
ACCESS_SLICE_NS: Final = 1_000_000
# Sessions that the lake process has open on its connection: one for each credential that is in use.
SESSIONS_PER_CONNECTION_MAX: Final = 10_000
# Topics that a listing looks at for one page of those that its session may see: some 0.2 s of decisions, in slices.
LISTING_SCAN_MAX: Final = 100_000
# Credentials of HTTP requests whose session the lake process keeps, and for how long: verifying a token costs more than
# a decision. Rights are asked for with each request, so this delays no revocation.
CALLER_SESSIONS_MAX: Final = 2_000
CALLER_SESSION_SECONDS: Final = 5.0
# How long the lake process believes that security is off: one question in this time instead of one for each request.
SECURITY_OFF_SECONDS: Final = 0.5
# How long a request waits for the broker to come back before it is refused.
CALLER_LINK_SECONDS: Final = 5.0
# The topic filter of a grant; a topic may be longer, a grant that lists so many levels is a mistake.
MQTT_PATTERN_BYTES_MAX: Final = 2 * KIB
# MQTT topics whose publishing is decided, kept by each connection until the policy changes: a device has a few, a
# gateway some hundred. A topic is up to 64 KiB, so longer ones than a usual name are decided each time.
MQTT_DECISIONS_MAX: Final = 256
MQTT_DECISION_TOPIC_MAX: Final = 256
# Rights that one call asks about: those of a page of a listing.
DECISIONS_PER_CALL_MAX: Final = 1_000
# How often sessions with an ended credential are looked for, and the store is asked whether it still has a leader: a
# revocation or an expiry takes effect within a second.
ACCESS_TICK_SECONDS: Final = 0.5
# A store that was not confirmed to be current for so long: no new logins and no new producers and consumers; later, the
# open ones close, because a right may have been revoked meanwhile (hazard 113).
ACCESS_LOGIN_GRACE_MS: Final = 10_000
ACCESS_HOLD_GRACE_MS: Final = 60_000
ACCESS_GRACE_MS_MAX: Final = 24 * 3_600_000
# Expired sessions are found by a heap; entries of sessions that closed before are dropped when there are as many of
# them as open sessions, and this many more.
ACCESS_EXPIRIES_SPARE: Final = 1_024
# The records of security are in the memory of every node. All of them together stay below 100 MB and a tenth of the
# keys of the metadata store: organisations with more people than that use external tokens and role claims.
SECURITY_ACCOUNTS_MAX: Final = 10_000
SECURITY_ROLES_MAX: Final = 1_000
SECURITY_ROLE_RULES_MAX: Final = 100
SECURITY_GRANTS_MAX: Final = 20_000
# Deleting an account deletes its grants, deleting a topic parks those for exactly that topic, each in one transaction,
# which holds METADATA_TXN_OPERATIONS_MAX operations.
SECURITY_GRANTS_EACH_MAX: Final = 200
# Roles of one binding of Danube's tools: each is a grant.
SECURITY_BINDING_ROLES_MAX: Final = 20
# Issued tokens that have not expired, of the whole cluster and of one account; as many can be revoked.
SECURITY_TOKENS_MAX: Final = 50_000
SECURITY_TOKENS_EACH_MAX: Final = 200
# A revocation outlives its token by the clock skew that is accepted, and by the difference of two clocks.
SECURITY_REVOKED_SPARE_MS: Final = 3_600_000
# A note at a token: for which program it was issued.
SECURITY_NOTE_BYTES_MAX: Final = 200
# A token that is older than the memory of its issuer is a password without an owner.
SECURITY_TOKEN_SECONDS_MAX: Final = 366 * 24 * 3600
# A change of security waits so long for the other nodes before it names those that have not applied it.
ACCESS_PENDING_SECONDS: Final = 1.0
# Concurrent changes by several nodes: each attempt loses only to a change that was applied.
SECURITY_ATTEMPTS_MAX: Final = 20

# Tokens; longer ones are refused unread. A header of HTTP/1 and of gRPC has about this much room, and those of identity
# providers with many groups have some kilobytes.
TOKEN_BYTES_MAX: Final = 8 * KIB
# How far the clocks of an issuer and of this node may be apart: what NTP keeps, generously.
TOKEN_SKEW_SECONDS: Final = 60
# A login with a password gives a token for a working day.
LOGIN_TOKEN_SECONDS_DEFAULT: Final = 12 * 3600
# Roles that one external token brings.
TOKEN_ROLES_MAX: Final = 100
# Verified tokens are remembered by digest: HTTP clients send the same one with each request.
TOKEN_CACHE_ENTRIES: Final = 4_096
TOKEN_CACHE_SECONDS: Final = 30
# Keys that verify: one a month for a year, and some more.
SIGNING_KEYS_MAX: Final = 16
# A secret in a file: keys and tokens. More is a wrong file.
SECRET_FILE_BYTES_MAX: Final = 64 * KIB
# RFC 7518, 3.2: a key of HS256 has at least the bytes of its hash.
SHARED_KEY_BYTES_MIN: Final = 32
# What RFC 7518, 3.3 asks of RSA keys.
RSA_BITS_MIN: Final = 2_048

# Passwords. OWASP's parameters of argon2id: 19 MiB, two passes, parallelism 1; 40 ms on a core of 2024.
PASSWORD_MEMORY_KIB: Final = 19 * 1024
PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1 * KIB
# Hashes at once leave cores to the broker, and the queue is some seconds of them. One address has an eighth of it.
PASSWORD_THREADS: Final = 2
PASSWORD_QUEUE_MAX: Final = 64
PASSWORD_ADDRESS_MAX: Final = 8
# The largest delay of a login after failures: an attacker gets 17,000 guesses a day, a person waits for it once.
LOGIN_DELAY_MS_MAX: Final = 5_000
# Failures are forgotten after a while without any.
LOGIN_FORGET_MS: Final = 900_000
# Pairs of address and name with failures: less than a megabyte.
LOGIN_PAIRS_MAX: Final = 4_096

# Key sets of external issuers have a few KiB, and an answer from afar comes within seconds.
JWKS_BYTES_MAX: Final = 1 * MIB
JWKS_KEYS_MAX: Final = 100
JWKS_SECONDS_MAX: Final = 5.0
# At most one fetch in this time, whatever tokens name; a fetch is due when the keys are as old as the second; keys of
# an issuer that does not answer are used so long.
JWKS_REFETCH_SECONDS: Final = 60
JWKS_AGE_SECONDS: Final = 3_600
JWKS_KEPT_SECONDS: Final = 24 * 3_600

# Events of denials, failed logins and accesses in a second, after equal ones are merged: about 40 kB of log.
AUDIT_EVENTS_PER_SECOND: Final = 100
AUDIT_EVENTS_PER_SECOND_MAX: Final = 10_000
# The share of one principal and address in it: a fourth, so that others are still recorded beside an attacker.
AUDIT_SHARE: Final = 4
# Bytes of a text in an event: long enough for every valid resource and rule.
AUDIT_TEXT_BYTES_MAX: Final = 1 * KIB
# How long a change waits for its event to become durable; then the change is refused.
AUDIT_SECONDS_MAX: Final = 10.0

# --- durable sessions -----------------------------------------------------------------------------------------------
# Client ids, topics, filters, payloads of wills: their length has 16 bits on the wire.
MQTT_TEXT_BYTES_MAX: Final = 65_535
# Identifiers of the overlapping subscriptions that one delivery merges; further ones are left out of the packet.
MQTT_IDENTIFIERS_MAX: Final = 64
# Filters of one session: a session is written again as one block, which stays well below the largest one.
SESSION_FILTER_BYTES_MAX: Final = 256 * KIB
# The log of sessions may be so many times as long as their live state, and this much longer: then each byte is written
# about twice, and a start reads at most three times the state.
SESSION_LOG_FACTOR: Final = 2
SESSION_LOG_SLACK_BYTES: Final = 1 * MIB
# Sessions looked at by one write for the oldest: those whose next base is in flight are skipped.
SESSION_LOG_REWRITES_MAX: Final = 64
# Acks and positions wait so long for another record that is written anyway: a crash repeats what was acked since.
SESSION_LAZY_SECONDS: Final = 0.1
# How soon records are offered again to a log that takes nothing.
SESSION_RETRY_SECONDS: Final = 0.1
# Records of one block: some hundred kilobytes at most, far below the largest batch.
SESSION_BLOCK_RECORDS: Final = 4_096
# Sessions written again in one interval because they lie in old log files: less than a disk writes in 0.1 s.
SESSION_REFRESH_BYTES: Final = 4 * MIB
# Of these between two turns of the loop: about a millisecond.
SESSION_REFRESH_SLICE: Final = 64
# Retained messages of a node: about 500 bytes of memory each beside their bytes.
RETAINED_VALUES_MAX: Final = 1_000_000
RETAINED_BYTES_MAX: Final = 256 * MIB
# Retained values of one block; a value is at most a packet of MQTT_PACKET_BYTES_MAX_DEFAULT.
RETAINED_BLOCK_BYTES: Final = 512 * KIB
# One read of an iterator: some thousand small messages, and a file's part that is read while they are sent.
ITERATOR_READ_BYTES: Final = 1 * MIB
# One read of a start: some thousand sessions.
SESSION_LOG_READ_BYTES: Final = 4 * MIB

# --- MQTT -----------------------------------------------------------------------------------------------------------
# The largest packet of a client. The protocol allows 256 MiB, which one client could make the broker buffer.
MQTT_PACKET_BYTES_MAX_DEFAULT: Final = 1 * MIB
# The CONNECT packet, before the client is known: a will of 64 KiB with its properties, names and a password fit.
MQTT_CONNECT_BYTES_MAX: Final = 256 * KIB
# Levels of a topic or filter. Deployments use up to ten; a match walks the levels of a topic.
MQTT_TOPIC_LEVELS_MAX: Final = 128
# Pairs of filter and subscriber in one index: about 300 bytes each with their part of the trie.
MQTT_INDEX_PAIRS_MAX: Final = 1_000_000
# QoS 1 and 2 messages in flight to a client, and from it: a durable session writes an entry for each (60).
MQTT_IN_FLIGHT_MAX: Final = 1_024
# Publishes of a connection that are not settled: beyond it the connection is not read. About 700 messages of 300 bytes.
MQTT_UNSETTLED_BYTES_MAX: Final = 256 * KIB
# A publish costs its bytes and this, so that empty ones are not free (hazard 73).
MQTT_PACKET_OVERHEAD_BYTES: Final = 64
# Packets behind a SUBSCRIBE or UNSUBSCRIBE that is under way: beyond it the connection is not read (hazard 67).
MQTT_PARKED_BYTES_MAX: Final = 64 * KIB
# Plain messages that the native wire stores by one append: a record of the log holds more than that.
MQTT_BURST_BYTES_MAX: Final = 1 * MIB
# A connection that was silent too long is looked at again after this: what arrived while the loop was late counts.
MQTT_SILENCE_GRACE_SECONDS: Final = 0.1
# Topic aliases of a connection, in each direction: 64 KiB of topic text each would be 4 MiB.
MQTT_TOPIC_ALIASES_MAX: Final = 64
# The longest keep alive: a connection whose client vanished is kept for one and a half times as long.
MQTT_KEEP_ALIVE_SECONDS_MAX: Final = 65_535
# Shards of a topic that a route creates: order is kept in each, and members of a shared subscription divide them.
MQTT_SHARDS_DEFAULT: Final = 4
# How long a session outlives its connection at most, and one of 3.1.1, which cannot say: a month, and a week.
MQTT_SESSION_EXPIRY_S_MAX_DEFAULT: Final = 30 * 24 * 3_600
MQTT_SESSION_EXPIRY_S_DEFAULT: Final = 7 * 24 * 3_600
# Sessions of a node: some kilobytes of memory each.
MQTT_SESSIONS_MAX_DEFAULT: Final = 100_000
MQTT_SESSIONS_MAX: Final = 1_000_000
# Subscriptions of one session.
MQTT_SUBSCRIPTIONS_MAX_DEFAULT: Final = 1_000
MQTT_SUBSCRIPTIONS_MAX: Final = 10_000
# Topics whose route and matches are cached: about 200 bytes each beside the topic.
MQTT_TOPICS_CACHED: Final = 100_000
# Decoded sections that readers of the same range share: one is at most a log record of 4 MiB.
MQTT_SECTIONS_CACHED: Final = 16
# One read of a feed or of a session that catches up.
MQTT_FEED_READ_BYTES: Final = 256 * KIB
# Rows and offers of one slice of the loop, about a millisecond of Python.
MQTT_FEED_SLICE: Final = 256
# How soon a shard that cannot be read is read again, and at most.
MQTT_READ_RETRY_SECONDS: Final = 0.5
MQTT_READ_RETRY_SECONDS_MAX: Final = 10.0
# Rows that a session that catches up looks at before others have their turn.
MQTT_CATCH_UP_ROWS: Final = 512
# Rows of one batch to one session.
MQTT_BATCH_ROWS: Final = 1_024
# The block of a parked message beside its payload: head, columns, topic and properties.
MQTT_PARKED_OVERHEAD_BYTES: Final = 4 * KIB
# How often the elapsed time and the marks of shards are written: a crash makes timers late by it, never early.
MQTT_BEAT_SECONDS: Final = 10.0
# Sessions that a beat looks at between two turns of the loop: less than a millisecond.
MQTT_BEAT_SLICE: Final = 512
# Marks are also written after so many rows: what a start after a crash looks at again, about half a second.
MQTT_BEAT_ROWS: Final = 100_000
# Beats without progress after which a session with room and a backlog counts as silent: longer than a read of a table
# may take (SCAN_SECONDS_MAX).
MQTT_SILENT_BEATS: Final = 12
# Session ids that a start takes from the metadata store: never used up by a node between two starts.
MQTT_SESSION_ID_BLOCK: Final = 2**20
# How soon the end of a session, or its will, is tried again when the log took nothing.
MQTT_END_RETRY_SECONDS: Final = 1.0
# Marks of a shard for the lag of sessions in bytes and age: one for so many bytes or so much time, twice as far apart
# each time that there are too many. 24 bytes each.
MQTT_MARKS_MAX: Final = 1_024
MQTT_MARK_BYTES: Final = 64 * KIB
MQTT_MARK_US: Final = 10_000_000
# Topics that listings know, the latest ones, and characters of their names: about 300 bytes each beside the name.
MQTT_TOPICS_SEEN_MAX: Final = 100_000
MQTT_TOPICS_SEEN_BYTES: Final = 32 * MIB
# Topics that are looked at before one is forgotten: those that had messages lately stay.
MQTT_TOPICS_SECOND_CHANCES: Final = 8
# Routes to topics, in the order in which they are compared with a topic that is not cached.
MQTT_ROUTES_MAX: Final = 256
# How long a node dials the one that serves MQTT, for a connection that it passes on.
MQTT_RELAY_DIAL_SECONDS: Final = 3.0
# Former generations of the routes that a session may still read in their order; older ones are read with the next.
MQTT_ROUTE_GENERATIONS_MAX: Final = 64
# How long CONNECT waits behind a start until messages since the last mark were looked at; they are ten seconds old.
MQTT_CATCH_UP_SECONDS: Final = 10.0
# Latencies that `icestream bench mqtt` keeps for each subscriber: enough for a percentile.
BENCH_LATENCIES_MAX: Final = 100_000

# --- backup -----------------------------------------------------------------------------------------------------------

# Running backups of a node: each holds the log, and the encoded metadata store in memory.
BACKUPS_AT_ONCE: Final = 2
# A run that died holds the log for this long; a live one renews with every call, at least each BACKUP_RENEW_SECONDS.
BACKUP_HOLD_MS: Final = 120_000
BACKUP_RENEW_SECONDS: Final = 20.0
# Bytes of sections in one answer, well below FRAME_BYTES_MAX_DEFAULT, and of the parts of checkpoint and metadata.
BACKUP_TAIL_READ_BYTES: Final = 2 * MIB
BACKUP_PART_BYTES: Final = 4 * MIB
# Ids are 25 characters; a hold is named after them.
BACKUP_ID_CHARACTERS_MAX: Final = 64
# The source of a key may be a command that asks a key store.
BACKUP_KEY_SECONDS: Final = 30.0
# Pieces in which files are read, hashed and written.
BACKUP_CHUNK_BYTES: Final = 1 * MIB
# Root, begin and manifests are read whole.
BACKUP_DOCUMENT_BYTES_MAX: Final = 256 * MIB
# Files that are read, hashed and written to a temporary file at once; each takes a chunk of memory.
BACKUP_READS_AT_ONCE: Final = 4
# Files that are copied at once, those included that only wait for the disk's sync or for a bucket.
BACKUP_UPLOADS_AT_ONCE: Final = 8
# Files from which tasks of Spark copy a backup: a job of 256 of them costs some 100 ms beside the copy, and the session
# of a command five seconds.
BACKUP_SPARK_FILES_DEFAULT: Final = 10_000
BACKUP_SPARK_FILES_MAX: Final = 1_000_000_000
# A tail is read whole by a restore; its positions are u32.
BACKUP_TAIL_OBJECT_BYTES: Final = 64 * MIB
# A flushed batch: what one manifest of seed 003 describes.
BACKUP_BATCH_FILES: Final = 256
BACKUP_BATCH_BYTES: Final = 256 * MIB
# Rows of the object list in one row group.
BACKUP_LIST_ROWS: Final = 10_000
# Of the interval and the kept age of scheduled backups: ten years.
BACKUP_INTERVAL_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
# The list of a target is read for each deletion.
BACKUPS_KEPT_MAX: Final = 10_000
# An unfinished backup that recorded nothing for so long is not running any more: a batch takes minutes, and an
# operator had a day to resume it. So are temporary files of a target that were not written to since.
BACKUP_ABANDONED_MS: Final = 24 * 3_600_000
# A schedule looks at its target at least this often: an operator may have made or deleted backups.
BACKUP_SCHEDULE_LOOK_SECONDS: Final = 3_600.0
# A deletion takes a listing of the target and a request for each object; a run waits for it before it ends.
BACKUP_DELETION_LOOKS: Final = 60
BACKUP_DELETION_LOOK_SECONDS: Final = 1.0
# The lock of a backup: of S3 a hundred years, and a month unless something else is asked for, because nothing takes a
# lock back. Requests are small, so more of them are under way than uploads. A quick verification looks at so many
# objects, whatever the size of the backup.
BACKUP_LOCK_DAYS_DEFAULT: Final = 30
BACKUP_LOCK_DAYS_MAX: Final = 36_500
BACKUP_LOCKS_AT_ONCE: Final = 16
BACKUP_LOCK_SAMPLE: Final = 100
# A drill that could not run is tried again after a tenth of its interval, at most this.
BACKUP_DRILL_RETRY_MS_MAX: Final = 3_600_000
# Objects that one request of the API looks at, each with a request to the store.
API_BACKUP_OBJECTS_MAX: Final = 10_000
# Reports of drills that a target keeps: years of daily ones.
DRILL_REPORTS_MAX: Final = 1_000
# Tables of all backups together whose names and places the catalog remembers for views: some 500 bytes each.
BACKUP_VIEW_TABLES_MAX: Final = 100_000
# --- archive ----------------------------------------------------------------------------------------------------------
# An archive that asks for nothing so long is dead: the log is not held for it any more. Longer than a restart takes.
ARCHIVE_HOLD_MS: Final = 600_000
# How often the broker looks whether it holds too much for the archive: at full speed a log gains some 100 MB meanwhile.
ARCHIVE_BOUND_SECONDS: Final = 1.0
# Records or changes in one answer, well below FRAME_BYTES_MAX_DEFAULT.
ARCHIVE_READ_BYTES: Final = 2 * MIB
# The log in one object, which is in memory whole: large enough that the requests of a bucket do not cost the most.
ARCHIVE_OBJECT_BYTES: Final = 16 * MIB
# Changes of the metadata store that wait in the broker; beyond it the archive takes the whole state.
ARCHIVE_CHANGES_BYTES_MAX: Final = 16 * MIB
# What a kept change costs beside its keys and values.
ARCHIVE_CHANGE_BYTES: Final = 128
# The head of an archive is written again after so long although nothing happened.
ARCHIVE_HEAD_SECONDS: Final = 60.0
# Gaps that the head of an archive lists: the newest ones.
ARCHIVE_GAPS_LISTED: Final = 16
# How often objects are removed that no backup needs, and how many at once.
ARCHIVE_RETAIN_SECONDS: Final = 3_600.0
ARCHIVE_REMOVED_MAX: Final = 10_000
# Of `backup.archive.interval_ms`: above it the archive is no better than a schedule.
ARCHIVE_INTERVAL_MS_MAX: Final = 3_600_000
ARCHIVE_INTERVAL_MS_DEFAULT: Final = 5_000
# The log that is held for an archive whose target is down: minutes at full speed, and a small part of a disk.
ARCHIVE_HELD_BYTES_DEFAULT: Final = 1024 * MIB
# --- erasure ----------------------------------------------------------------------------------------------------------
# A list of some hundred keys; longer ones are several erasures.
ERASURE_PREDICATE_BYTES_MAX: Final = 64 * KIB
ERASURE_COMPARISONS_MAX: Final = 1_000
# Recursion of the parser: no person nests deeper.
ERASURE_PREDICATE_DEPTH_MAX: Final = 64
# Decoded rows of one file in a task. Ingest writes files of 512 MiB at most, of which compaction makes none.
ERASURE_TASK_BYTES: Final = 1024 * MIB
# Files in one Spark job, and in one commit: between two of them a round of ingest finds a free core, and progress is
# reported.
ERASURE_STEP_FILES: Final = 16
# Snapshots in one commit that rewrites history: the catalog reads what changes in each.
ERASURE_STEP_SNAPSHOTS: Final = 64
# Places of retained messages in one call of an erasure.
ERASURE_PLACES_MAX: Final = 10_000
# How often the table may change under an erasure before it gives up.
ERASURE_ATTEMPTS_MAX: Final = 20
# How long an erasure waits until everything below its cut is committed.
ERASURE_COMMIT_SECONDS: Final = 300.0
# How long it waits for log files that others hold (readers, leases); then they are pending in its report.
ERASURE_LOG_SECONDS: Final = 30.0
# Ranges of erased offsets of a topic, in all its erasures together: some MiB in the side file and in readers' memory.
ERASED_RANGES_MAX: Final = 4_000_000
# Files, tags and the like that a report lists by name; it counts the others.
ERASURE_LISTED_MAX: Final = 200
# Reports of a topic in the metadata store; the oldest goes.
ERASURE_REPORTS_MAX: Final = 16
# Topics that one was restored from, one after the other: its erasures count for their backups. 100 bytes each in its
# record.
TOPIC_ORIGINS_MAX: Final = 16
