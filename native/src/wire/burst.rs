//! A burst: everything that arrived since the last poll, as one sequence of rows (hazard 55).
//!
//! The rows of a connection are decided in the order in which they arrived. Rows of one kind are joined across
//! connections, so that Python decides about groups: a burst is a list of segments of one kind each, and a
//! row goes into the first segment of its kind that is not before the last row of its connection.
//!
//!     connection a     PUBLISH 1    PING     PUBLISH 2
//!     connection b     PUBLISH 7    PUBLISH 8    ACK
//!     segments         [groups: a1 b7 b8]    [events: PING]    [acks: b]    [groups: a2]
//!
//! Which kinds there are is the protocol's business; events, which Python decides one by one, are a kind of each.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What happens to the connections of every protocol.
pub enum StreamEvent {
    Connected {
        connection: u64,
        peer: String,
        certificate: Option<Vec<u8>>,
    },
    /// The last row of a connection.
    Gone {
        connection: u64,
    },
    /// Its queue has drained below a quarter of its bound.
    Room {
        connection: u64,
    },
    /// Nothing was received for as long as that is allowed.
    Silent {
        connection: u64,
    },
    AcceptFailed {
        errno: i32,
    },
}

impl StreamEvent {
    /// As Python gets it. The numbers of a protocol's own rows begin behind these.
    ///
    ///     (0, connection, peer, certificate)    a connection was accepted; DER, None without one
    ///     (1, connection)                       it is gone; the last row of a connection
    ///     (2, connection)                       its queue has drained below a quarter of its bound
    ///     (3, connection)                       nothing was received for as long as that is allowed
    ///     (4, errno)                            accepting failed
    pub fn into_tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            StreamEvent::Connected { connection, peer, certificate } => {
                let certificate = certificate.map(|der| PyBytes::new(py, &der));
                (0, connection, peer, certificate).into_pyobject(py)?.into_any()
            }
            StreamEvent::Gone { connection } => (1, connection).into_pyobject(py)?.into_any(),
            StreamEvent::Room { connection } => (2, connection).into_pyobject(py)?.into_any(),
            StreamEvent::Silent { connection } => (3, connection).into_pyobject(py)?.into_any(),
            StreamEvent::AcceptFailed { errno } => (4, errno).into_pyobject(py)?.into_any(),
        })
    }
}

/// The rows of one kind.
pub trait Segment: Sized {
    type Event: From<StreamEvent>;

    fn of_events() -> Self;

    /// Its events, if it has events.
    fn events(&mut self) -> Option<&mut Vec<Self::Event>>;
}

pub struct Burst<S> {
    /// Rises with every burst.
    pub number: u64,
    /// What its rows cost.
    pub bytes: usize,
    segments: Vec<S>,
}

impl<S: Segment> Burst<S> {
    pub fn new(number: u64) -> Burst<S> {
        Burst { number, bytes: 0, segments: Vec::new() }
    }

    /// Moves `position`, the segment of the connection's last row, to the segment of its next row: the first of which
    /// `part` returns something, or a new one behind all others. Returns that.
    pub fn segment<'a, R: ?Sized>(
        &'a mut self,
        position: &mut usize,
        part: impl Fn(&mut S) -> Option<&mut R>,
        new: impl FnOnce() -> S,
    ) -> &'a mut R {
        let skipped = self.segments.iter_mut().skip(*position).position(|segment| part(segment).is_some());
        *position = skipped.map_or(self.segments.len(), |skipped| *position + skipped);
        if skipped.is_none() {
            self.segments.push(new());
        }
        part(&mut self.segments[*position]).expect("a segment of this kind")
    }

    pub fn add_event(&mut self, position: &mut usize, event: impl Into<S::Event>) {
        self.segment(position, S::events, S::of_events).push(event.into());
    }

    /// The segments in order.
    pub fn into_segments(self) -> Vec<S> {
        self.segments
    }
}
