//! What a run is made of: `key=value` each.

use crate::Failure;

#[derive(Clone)]
pub struct Options {
    pub connections: usize,
    pub in_flight: usize,  // requests without an answer, on each connection
    pub batch: usize,      // messages in each request
    pub size: usize,       // bytes of each message
    pub messages: u64,     // in all; for `consume`: on each connection
    pub topics: usize,     // requests go round these
    pub mixed: bool,       // each request has one message for each of `batch` topics
    pub topic: String,
    pub seconds: f64,      // 0: until all messages are sent
    pub announce: bool,    // consume: say "ready" when everybody is subscribed
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut found = Options {
            connections: 1,
            in_flight: 1,
            batch: 1,
            size: 100,
            messages: 100_000,
            topics: 1,
            mixed: false,
            topic: "bench".into(),
            seconds: 0.0,
            announce: false,
        };
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or_else(|| format!("{argument} is not key=value"))?;
            match key {
                "connections" => found.connections = value.parse()?,
                "in_flight" => found.in_flight = value.parse()?,
                "batch" => found.batch = value.parse()?,
                "size" => found.size = value.parse()?,
                "messages" => found.messages = value.parse()?,
                "topics" => found.topics = value.parse()?,
                "mixed" => found.mixed = value.parse()?,
                "topic" => found.topic = value.to_owned(),
                "seconds" => found.seconds = value.parse()?,
                "announce" => found.announce = value.parse()?,
                _ => return Err(format!("there is no option {key}").into()),
            }
        }
        if found.connections * found.in_flight * found.batch * found.topics == 0 {
            return Err("connections, in_flight, batch and topics are at least 1".into());
        }
        Ok(found)
    }

    /// Requests of each connection.
    pub fn requests(&self) -> u64 {
        self.messages.div_ceil((self.connections * self.batch) as u64)
    }

    pub fn requests_in_all(&self) -> u64 {
        self.requests() * self.connections as u64
    }

    pub fn topic_of(&self, number: usize) -> String {
        if self.topics == 1 { self.topic.clone() } else { format!("{}-{}", self.topic, number % self.topics) }
    }
}
