//! MQTT 3.1.1 and 5.0 on the wire layer: `icestream/mqtt/codec.py` is the contract for every byte.

mod acks;
mod connection;
mod deliveries;
mod rows;
mod scan;
mod server;

pub use deliveries::MqttRows;
pub use scan::scan_mqtt;
pub use server::MqttServer;
