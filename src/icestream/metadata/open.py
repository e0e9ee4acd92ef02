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
from icestream.metadata.snapshot_task import SnapshotTask
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.files import Directory, File, LocalDirectory
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import InlineOffload, Offload, ThreadOffload
from icestream.storage.native import native
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import LOCK_NAME
from icestream.wal.sink import InlineSink, NativeSink, Sink

# In ticks of 50 ms, with the cluster; one voter waits for nobody.
ELECTION_TICKS = 10
HEARTBEAT_TICKS = 1


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    node_id: int = 1  # of a new log; later the log knows it
    log_file_bytes: int = limits.METADATA_LOG_FILE_BYTES
    snapshot_every_bytes: int = limits.METADATA_SNAPSHOT_EVERY_BYTES_MIN
    inline_sync_below_us: int = limits.INLINE_SYNC_BELOW_US_DEFAULT

    @property
    def command_bytes_max(self) -> int:
        """What fits a record that stands alone in a file."""
        room = self.log_file_bytes - RECORDS_START - 2 * RECORD_OVERHEAD_BYTES
        return min(room, limits.METADATA_COMMAND_BYTES_MAX)


async def open_metadata(path: Path, clock: Clock | None = None, options: MetadataOptions | None = None) -> NodeStore:
    """The store in `path`, made when it is not there. Wait for `ready()` before it is used."""
    clock, options = clock or SystemClock(), options or MetadataOptions()
    sink: Sink = NativeSink(clock, options.inline_sync_below_us) if native else InlineSink()
    threads: Callable[[str], Offload] = ThreadOffload
    return await open_metadata_on(LocalDirectory(path), clock, SystemRandomness(), sink, options, threads)


async def open_metadata_on(
    directory: Directory,
    clock: Clock,
    randomness: Randomness,
    sink: Sink,
    options: MetadataOptions = MetadataOptions(),  # noqa: B008 (a constant)
    threads: Callable[[str], Offload] = lambda name: InlineOffload(),
    core_factory: CoreFactory = SoloCore,
) -> NodeStore:
    """The same on whatever is handed in: how tests open it on a simulated disk."""
    lock = directory.lock(LOCK_NAME)
    offload = threads("metadata-files")
    try:
        log_id, cluster_id = randomness.token(16), randomness.token(16)
        recovered = await offload.run(lambda: recover(directory, clock, log_id))
        identity = recovered.identity or new_identity(options.node_id, cluster_id)
        log = LogStore(directory, clock, sink, offload, options.log_file_bytes, identity, recovered)
        await log.prepare()
        if log.prepare_error is not None:
            raise log.prepare_error
        return _start(recovered, identity, log, clock, options, core_factory, (offload, lock, directory))
    except BaseException as error:
        sink.close()
        offload.close()
        lock.close()
        directory.close()
        if isinstance(error, OSError):
            raise _cannot_open(directory, error) from error
        raise


def new_identity(node_id: int, cluster_id: bytes) -> Identity:
    return Identity(node_id, cluster_id, eraftpb.encode_conf(Membership((node_id,))))


def _start(
    recovered: RecoveredLog,
    identity: Identity,
    log: LogStore,
    clock: Clock,
    options: MetadataOptions,
    core_factory: CoreFactory,
    held: tuple[Offload, File, Directory],
) -> NodeStore:
    conf = recovered.snapshots[0].head.conf if recovered.snapshots else identity.conf
    core = make_core(recovered, identity.node_id, conf, core_factory)
    node = Node(recovered.machine, core, log, clock, options.command_bytes_max, conf)
    snapshots = SnapshotTask(node, core, log, held[0], options.snapshot_every_bytes)
    store = NodeStore(node, snapshots, clock, identity, recovered.report, held)
    node.start()
    return store


def make_core(recovered: RecoveredLog, node_id: int, conf: bytes, core_factory: CoreFactory) -> Core:
    """The commit index may be older than the snapshot and is at most the end of the log (trap 13)."""
    index, snapshot = 0, None
    if recovered.snapshots:
        newest = recovered.snapshots[0]
        index = newest.head.index
        snapshot = eraftpb.encode_snapshot(SnapshotParts(index, newest.head.term, conf, newest.descriptor))
    last = index + len(recovered.entries)
    term, vote, commit = recovered.state
    state = HardState(term, vote, min(max(commit, index), last))
    return core_factory(node_id, ELECTION_TICKS, HEARTBEAT_TICKS, state, conf, recovered.entries, snapshot, index)


def _cannot_open(directory: Directory, error: OSError) -> errors.IcestreamError:
    where = directory.describe("")
    if error.errno in (ENOSPC, EDQUOT):
        return errors.DiskFull(f"the metadata store in {where} needs room to start: {error}", hint="free disk space")
    return errors.LogError(f"the metadata store in {where} cannot be opened: {error}", hint="check the disk")
