//! The Python interface of the core.
//!
//! Guards around the crate, each of which a simulation has shown to be necessary:
//!     while a snapshot is being installed (from its ready until it is persisted) ticks are ignored and this node cannot
//!     be made to campaign: the crate panics there
//!     a snapshot is reported as applied once it is durable, or the next campaign panics

use super::mirror::Mirror;
use prost::Message as _;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use raft::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeV2, ConfState, Entry, Message, MessageType, Snapshot};
use raft::{Config, RawNode, Ready, SnapshotStatus, StateRole, Storage};
use std::collections::VecDeque;
use std::fmt::Display;

/// The kind of entry that holds a ConfChange; anything else that changes the membership is a ConfChangeV2.
const CONF_CHANGE: i32 = 1;

#[pyclass]
pub struct RaftCore {
    node: RawNode<Mirror>,
    /// Ready number and index of the snapshots that are being installed.
    installing: VecDeque<(u64, u64)>,
}

#[pymethods]
impl RaftCore {
    /// `hard_state`: term, vote, commit. Everything else that is bytes is a message of eraftpb.
    #[new]
    #[pyo3(signature = (
        node_id, election_tick, heartbeat_tick, hard_state, conf, entries, snapshot=None, applied=0, *,
        message_bytes_max=1 << 20, messages_in_flight_max=256, tells_commits=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, and given in one place")]
    fn new(
        node_id: u64,
        election_tick: usize,
        heartbeat_tick: usize,
        hard_state: (u64, u64, u64),
        conf: &[u8],
        entries: Vec<Vec<u8>>,
        snapshot: Option<&[u8]>,
        applied: u64,
        message_bytes_max: u64,
        messages_in_flight_max: usize,
        tells_commits: bool,
    ) -> PyResult<RaftCore> {
        let mut mirror = Mirror::default();
        if let Some(snapshot) = snapshot {
            mirror.install(Snapshot::decode(snapshot).map_err(malformed)?);
        }
        mirror.conf = ConfState::decode(conf).map_err(malformed)?;
        mirror.hard_state.term = hard_state.0;
        mirror.hard_state.vote = hard_state.1;
        mirror.hard_state.commit = hard_state.2.max(mirror.hard_state.commit);
        let mut behind = Vec::with_capacity(entries.len());
        for entry in entries {
            let entry = Entry::decode(&entry[..]).map_err(malformed)?;
            if entry.index > mirror.base() {
                behind.push(entry);
            }
        }
        if !mirror.append(&behind) {
            return Err(PyValueError::new_err("the entries do not join the snapshot"));
        }
        let config = Config {
            id: node_id,
            election_tick,
            heartbeat_tick,
            applied,
            pre_vote: true,
            check_quorum: true,
            max_size_per_msg: message_bytes_max,
            max_inflight_msgs: messages_in_flight_max,
            skip_bcast_commit: !tells_commits,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, mirror, &logger).map_err(failed)?;
        Ok(RaftCore { node, installing: VecDeque::new() })
    }

    fn tick(&mut self) -> bool {
        self.installing.is_empty() && self.node.tick()
    }

    fn campaign(&mut self) -> PyResult<()> {
        if self.installing.is_empty() { self.node.campaign().map_err(failed) } else { Ok(()) }
    }

    /// Handles a message; ValueError for malformed bytes. Returns an index if the message was not handled, because the
    /// leader knows that this node has confirmed the entry of that index and its log lacks it: the crate would panic.
    fn step(&mut self, message: &[u8]) -> PyResult<Option<u64>> {
        let message = Message::decode(message).map_err(malformed)?;
        if !self.installing.is_empty() && message.get_msg_type() == MessageType::MsgTimeoutNow {
            return Ok(None);
        }
        let raft = &self.node.raft;
        if message.get_msg_type() == MessageType::MsgHeartbeat
            && message.term >= raft.term
            && message.commit > raft.raft_log.last_index()
        {
            return Ok(Some(message.commit));
        }
        match self.node.step(message) {
            // Messages of nodes that were removed or never were members are ignored.
            Ok(()) | Err(raft::Error::StepPeerNotFound | raft::Error::StepLocalMsg | raft::Error::ProposalDropped) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Proposes one entry for each. False if nothing was proposed: this node is not leader, or is handing over.
    fn propose(&mut self, batch: Vec<Vec<u8>>) -> bool {
        if self.node.raft.state != StateRole::Leader {
            return false; // the crate would forward it to the leader, and its outcome would be unknown here
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.node.raft.id;
        message.entries = batch.into_iter().map(|data| Entry { data, ..Entry::default() }).collect();
        self.node.raft.step(message).is_ok()
    }

    /// Sends the commit index to the followers. Without `tells_commits` they learn it only with the next entries and
    /// heartbeats.
    fn tell_commit(&mut self) {
        if self.node.raft.state == StateRole::Leader {
            self.node.raft.bcast_append();
        }
    }

    fn read_index(&mut self, context: Vec<u8>) {
        self.node.read_index(context);
    }

    fn transfer_leader(&mut self, to: u64) {
        self.node.transfer_leader(to);
    }

    /// `changes`: 0 a voter, 1 removed, 2 a learner, and whose. `transition`: 0 as needed, 1 joint, left by itself, 2 joint.
    fn propose_conf(&mut self, changes: Vec<(i32, u64)>, transition: i32, context: Vec<u8>) -> bool {
        if self.node.raft.state != StateRole::Leader {
            return false;
        }
        let single = |(change_type, node_id)| ConfChangeSingle { change_type, node_id };
        let changes = changes.into_iter().map(single).collect();
        let change = ConfChangeV2 { transition, changes, context: vec![] };
        self.node.propose_conf_change(context, change).is_ok()
    }

    fn apply_conf<'py>(&mut self, py: Python<'py>, kind: i32, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let conf = if kind == CONF_CHANGE {
            self.node.apply_conf_change(&ConfChange::decode(data).map_err(malformed)?)
        } else {
            self.node.apply_conf_change(&ConfChangeV2::decode(data).map_err(malformed)?)
        };
        let conf = conf.map_err(failed)?;
        self.node.mut_store().conf = conf.clone();
        Ok(PyBytes::new(py, &conf.encode_to_vec()))
    }

    /// The fields of `core.Ready`, in their order.
    fn ready<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if !self.node.has_ready() {
            return Ok(None);
        }
        let mut ready = self.node.ready();
        let (number, must_sync) = (ready.number(), ready.must_sync());
        let hard_state = ready.hs().map(|state| (state.term, state.vote, state.commit));
        let soft_state = ready.ss().map(|state| (state.leader_id, state.raft_state as u8));
        let send_now = messages(py, ready.take_messages())?;
        let send_after = messages(py, ready.take_persisted_messages())?;
        let snapshot = (!ready.snapshot().is_empty()).then(|| PyBytes::new(py, &ready.snapshot().encode_to_vec()));
        let entries = PyList::empty(py);
        for entry in ready.entries() {
            entries.append((entry.index, PyBytes::new(py, &entry.encode_to_vec())))?;
        }
        let committed = PyList::empty(py);
        for entry in ready.take_committed_entries() {
            let (data, context) = (PyBytes::new(py, &entry.data), PyBytes::new(py, &entry.context));
            committed.append((entry.index, entry.term, entry.entry_type, data, context))?;
        }
        let reads = PyList::empty(py);
        for read in ready.take_read_states() {
            reads.append((read.index, PyBytes::new(py, &read.request_ctx)))?;
        }
        self.take(ready)?;
        let fields =
            (number, hard_state, must_sync, entries, send_now, send_after, snapshot, committed, reads, soft_state);
        Ok(Some(fields.into_pyobject(py)?))
    }

    fn persisted(&mut self, number: u64) {
        self.node.on_persist_ready(number);
        while let Some(&(ready, index)) = self.installing.front()
            && ready <= number
        {
            self.installing.pop_front();
            if index > self.node.raft.raft_log.applied {
                self.node.advance_apply_to(index);
            }
        }
    }

    fn applied(&mut self, index: u64) {
        self.node.advance_apply_to(index);
    }

    fn snapshot<'py>(&mut self, py: Python<'py>, index: u64, conf: &[u8], data: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = self.node.store().term(index).map_err(failed)?;
        metadata.conf_state = Some(ConfState::decode(conf).map_err(malformed)?);
        let encoded = PyBytes::new(py, &snapshot.encode_to_vec());
        self.node.mut_store().snapshot = Some(snapshot);
        Ok(encoded)
    }

    fn compact(&mut self, index: u64) {
        self.node.mut_store().compact(index);
    }

    fn report_snapshot(&mut self, node_id: u64, succeeded: bool) {
        let status = if succeeded { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(node_id, status);
    }

    fn report_unreachable(&mut self, node_id: u64) {
        self.node.report_unreachable(node_id);
    }

    /// In ticks, for the present term and role.
    fn set_election_timeout(&mut self, ticks: usize) {
        self.node.raft.set_randomized_election_timeout(ticks);
    }

    /// The fields of `core.Status`.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let raft = &self.node.raft;
        let status = PyDict::new(py);
        status.set_item("term", raft.term)?;
        status.set_item("leader", raft.leader_id)?;
        status.set_item("role", raft.state as u8)?;
        status.set_item("commit", raft.raft_log.committed)?;
        status.set_item("last", raft.raft_log.last_index())?;
        status.set_item("first", self.node.store().base() + 1)?;
        status.set_item("voters", &self.node.store().conf.voters)?;
        status.set_item("learners", &self.node.store().conf.learners)?;
        let progress = PyDict::new(py);
        if raft.state == StateRole::Leader {
            for (id, peer) in raft.prs().iter() {
                progress.set_item(id, (peer.matched, peer.next_idx, peer.recent_active))?;
            }
        }
        status.set_item("progress", progress)?;
        Ok(status)
    }
}

impl RaftCore {
    /// The mirror is updated at once; `persisted` reports to the crate what is on disk.
    fn take(&mut self, mut ready: Ready) -> PyResult<()> {
        let number = ready.number();
        let snapshot = ready.snapshot().clone();
        let entries = ready.take_entries();
        let hard_state = ready.hs().cloned();
        let mirror = self.node.mut_store();
        if !snapshot.is_empty() {
            self.installing.push_back((number, snapshot.get_metadata().index));
            mirror.install(snapshot);
        }
        if !mirror.append(&entries) {
            return Err(PyRuntimeError::new_err("the new entries do not join the log"));
        }
        if let Some(hard_state) = hard_state {
            mirror.hard_state = hard_state;
        }
        self.node.advance_append_async(ready);
        Ok(())
    }
}

/// Receiver, encoded message, and whether it is a snapshot.
fn messages(py: Python<'_>, all: Vec<Message>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for message in all {
        let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
        list.append((message.to, PyBytes::new(py, &message.encode_to_vec()), is_snapshot))?;
    }
    Ok(list)
}

fn malformed(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn failed(error: impl Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
