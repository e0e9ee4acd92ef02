//! The wire layer: sockets, framing, order and write queues of every protocol. Python decides; nothing here is a rule.
//!
//!     frames    the native protocol. It runs on Python's event loop, behind one epoll descriptor: one call of `poll`
//!               reads every socket that is ready, and returns what arrived as one burst (burst.rs). No thread, because
//!               a single message would pay two wake-ups for it
//!     mqtt      MQTT 3.1.1 and 5.0, in the same way
//!     grpc      gRPC over HTTP/2, for Danube's clients, in a thread of its own (feature `grpc`)
//!
//! A protocol is a parser that turns bytes into rows and events, and a writer for its answers. `frames` and `mqtt` share
//! the rest: `hub` (which connections are read, parsed and written to), `stream`, `socket` and `listener` (non-blocking
//! I/O, write queues), `tls` and `handshakes` (feature `tls`), `epoll`, `burst` (order, hazard 55). `grpc` shares `tls`:
//! the `h2` crate wants sockets of a runtime of its own, so its inbox keeps the order of rows by the same rule.

mod burst;
mod epoll;
mod frames;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "tls")]
mod handshakes;
mod hub;
mod listener;
mod mqtt;
mod socket;
mod stream;
mod timer;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;

pub use frames::FrameServer;
#[cfg(feature = "grpc")]
pub use grpc::{GrpcServer, decode_columns};
pub use mqtt::{MqttRows, MqttServer, scan_mqtt};
#[cfg(feature = "tls")]
pub use tls::check_tls;
