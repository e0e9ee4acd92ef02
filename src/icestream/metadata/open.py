"""Opens the metadata store of a directory: lock, recovery, first file, core, node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path

from icestream import errors, limits
from icestream.metadata import eraftpb
from icestream.metadata.core import Core, CoreFactory, HardState
from icestream.metadata.eraftpb import Membership, SnapshotParts
from icestream.metadata.log_format import RECORD_OVERHEAD_BYTES, Identity
from icestream.metadata.log_recovery import RecoveredLog, recover
from icestream.metadata.log_store import LogStore
from icestream.metadata.node import Node
from icestream.metadata.node_store import NodeStore
from icestream.metadata.snapshot_task import Every, SnapshotTask
from icestream.metadata.solo_core import SoloCore
from icestream.metadata.watermark import FileWatermark, MemoryWatermark, Watermark, mark_path
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.files import Directory, File, LocalDirectory
from icestream.runtime.native import native
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import InlineOffload, Offload, ThreadOffload
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.sink import InlineSink, NativeSink, Sink

HEARTBEAT_TICKS = 1


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """The options of one metadata store."""

    node_id: int = 1  # of a new log; an existing log contains it
    log_file_bytes: int = limits.METADATA_LOG_FILE_BYTES
    snapshot_every_bytes: int = limits.METADATA_SNAPSHOT_EVERY_BYTES_MIN
    snapshot_every_entries: int = 0  # 0: by size alone
    inline_sync_below_us: int = limits.INLINE_SYNC_BELOW_US_DEFAULT

    @property
    def command_bytes_max(self) -> int:
        """The largest command that fits a file with one record."""
        room = self.log_file_bytes - RECORDS_START - 2 * RECORD_OVERHEAD_BYTES
        return min(room, limits.METADATA_COMMAND_BYTES_MAX)


class OpenedMetadata:
    """A directory that is locked and recovered, with room for the first record; nothing runs yet."""

    def __init__(
        self,
        recovered: RecoveredLog,
        log: LogStore,
        clock: Clock,
        randomness: Randomness,
        options: MetadataOptions,
        resources: tuple[Offload, File, Directory],
    ) -> None:
        self.identity = recovered.identity
        self.log = log
        self._recovered = recovered
        self._clock = clock
        self._randomness = randomness
        self._options = options
        self._resources = resources

    @property
    def knows_others(self) -> bool:
        """Whether the log belongs to a node that has, or had, peers."""
        return self._recovered.knows_others

    @property
    def known_members(self) -> frozenset[int]:
        """The ids of the nodes in its snapshot and in the changes of members that it has applied."""
        confs = [b"" if self.identity is None else self.identity.conf]
        confs += [snapshot.head.conf for snapshot in self._recovered.snapshots[:1]]
        memberships = [eraftpb.decode_conf(conf) for conf in confs if conf]
        return frozenset(node for membership in memberships for node in (*membership.voters, *membership.learners))

    async def identify(self, identity: Identity) -> None:
        """Writes the identity of the log, and syncs it."""
        await self.log.identify(identity)
        self.identity = identity

    @property
    def recovered(self) -> RecoveredLog:
        """The result of recovery."""
        return self._recovered

    def start(
        self, core_factory: CoreFactory, forced_conf: bytes | None = None, *, takes_part: bool = True
    ) -> NodeStore:
        """Starts the node.

        `forced_conf`: the members, whatever the log says (cluster/force_new_cluster.py). `takes_part`: False for a node
        that must ask its peers first (`node.take_part`).
        """
        identity, recovered = self.identity, self._recovered
        assert identity is not None
        conf = forced_conf or (recovered.snapshots[0].head.conf if recovered.snapshots else identity.conf)
        core = make_core(recovered, identity.node_id, conf, core_factory)
        name = self._randomness.token(16)
        node = Node(recovered.machine, core, self.log, self._clock, self._options.command_bytes_max, conf, name)
        node.takes_part = takes_part
        options = self._options
        every = Every(options.snapshot_every_bytes, options.snapshot_every_entries)
        snapshots = SnapshotTask(node, core, self.log, self._resources[0], self._clock, every)
        store = NodeStore(node, snapshots, self._clock, identity, recovered.report, self._resources, name)
        node.start()
        return store

    async def close(self) -> None:
        """Closes a store that was not started."""
        await self.log.close()
        for resource in self._resources:
            resource.close()


async def open_metadata(path: Path, clock: Clock | None = None, options: MetadataOptions | None = None) -> NodeStore:
    """Opens the store in `path`; creates it if it does not exist. Wait for `ready()` before it is used."""
    opened = await open_directory(path, clock, options or MetadataOptions(node_id=new_node_id(SystemRandomness())))
    return await start_alone(opened, options or MetadataOptions(), SystemRandomness(), SoloCore)


async def open_directory(
    path: Path, clock: Clock | None, options: MetadataOptions, *, checks_mark: bool = True
) -> OpenedMetadata:
    """Locks and recovers the store in `path`. Raises LogOutdated, LogDamaged, LogLocked.

    `checks_mark`: False also opens a log that ends before its mark; the mark then follows this log.
    """
    clock = clock or SystemClock()
    sink: Sink = NativeSink(clock, options.inline_sync_below_us) if native else InlineSink()
    return await open_on(
        LocalDirectory(path),
        clock,
        SystemRandomness(),
        sink,
        options,
        ThreadOffload,
        lambda: FileWatermark(mark_path(path)),
        checks_mark=checks_mark,
    )


async def open_metadata_on(
    directory: Directory,
    clock: Clock,
    randomness: Randomness,
    sink: Sink,
    options: MetadataOptions = MetadataOptions(),  # noqa: B008 (a constant)
    threads: Callable[[str], Offload] = lambda name: InlineOffload(),
    core_factory: CoreFactory = SoloCore,
) -> NodeStore:
    """Opens on the given directory; tests pass a simulated disk."""
    opened = await open_on(directory, clock, randomness, sink, options, threads)
    return await start_alone(opened, options, randomness, core_factory)


async def start_alone(
    opened: OpenedMetadata, options: MetadataOptions, randomness: Randomness, core_factory: CoreFactory
) -> NodeStore:
    """Opens a single node, or a member whose log knows the others."""
    try:
        if opened.identity is None:
            opened.identity = opened.log.plan.identity
        elif not opened.identity.is_member:
            await opened.identify(new_identity(opened.identity.node_id, randomness.token(16)))
        return opened.start(core_factory)
    except BaseException:
        await opened.close()
        raise


async def open_on(
    directory: Directory,
    clock: Clock,
    randomness: Randomness,
    sink: Sink,
    options: MetadataOptions,
    threads: Callable[[str], Offload],
    open_watermark: Callable[[], Watermark] = MemoryWatermark,
    *,
    checks_mark: bool = True,
) -> OpenedMetadata:
    """`open_directory` with its dependencies as parameters. `open_watermark` is called after the lock is taken."""
    lock = directory.lock(LOCK_NAME)
    offload = threads("metadata-files")
    watermark: Watermark | None = None
    try:
        # Under the lock: another process that still runs would move it.
        watermark = open_watermark()
        mark = watermark.read() if checks_mark else None
        log_id, cluster_id = randomness.token(16), randomness.token(16)
        recovered = await offload.run(lambda: recover(directory, clock, log_id, mark))
        identity = recovered.identity or new_identity(options.node_id, cluster_id)
        log = LogStore(directory, clock, sink, offload, options.log_file_bytes, identity, recovered, watermark)
        await log.prepare()
        if log.prepare_error is not None:
            raise log.prepare_error
        return OpenedMetadata(recovered, log, clock, randomness, options, (offload, lock, directory))
    except BaseException as error:
        if watermark is not None:
            watermark.close()
        sink.close()
        offload.close()
        lock.close()
        directory.close()
        if isinstance(error, OSError):
            raise _cannot_open(directory, error) from error
        raise


def new_identity(node_id: int, cluster_id: bytes) -> Identity:
    """The identity of a new cluster with one node."""
    return Identity(node_id, cluster_id, eraftpb.encode_conf(Membership((node_id,))))


def new_node_id(randomness: Randomness) -> int:
    """A random 64-bit node id; never zero, which means no node."""
    return int.from_bytes(randomness.token(8)) or 1


def make_core(recovered: RecoveredLog, node_id: int, conf: bytes, core_factory: CoreFactory) -> Core:
    """Creates the core with a commit index between the snapshot and the end of the log (trap 13)."""
    index, snapshot = 0, None
    if recovered.snapshots:
        newest = recovered.snapshots[0]
        index = newest.head.index
        snapshot = eraftpb.encode_snapshot(SnapshotParts(index, newest.head.term, conf, newest.descriptor))
    last = index + len(recovered.entries)
    term, vote, commit = recovered.state
    # The stored commit index may be older than the snapshot, and newer than the log after an unsynced tail was cut off.
    state = HardState(term, vote, min(max(commit, index), last))
    return core_factory(
        node_id, limits.METADATA_ELECTION_TICKS, HEARTBEAT_TICKS, state, conf, recovered.entries, snapshot, index
    )


def _cannot_open(directory: Directory, error: OSError) -> errors.IcestreamError:
    """The error for an OSError during the start."""
    where = directory.describe("")
    if error.errno in (ENOSPC, EDQUOT):
        return errors.DiskFull(f"the metadata store in {where} needs room to start: {error}", hint="free disk space")
    return errors.LogError(f"the metadata store in {where} cannot be opened: {error}", hint="check the disk")
