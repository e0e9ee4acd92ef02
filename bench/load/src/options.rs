//! What a run is made of: `key=value` each.

use crate::Failure;

#[derive(Clone)]
pub struct Options {
    pub connections: usize,
    pub threads: usize,
    pub in_flight: usize, // requests without an answer, on each connection
    pub batch: usize,     // messages in each request
    pub parts: usize,     // of each native request: batches of `batch / parts` messages, each for another handle
    pub size: usize,      // bytes of each message
    pub messages: u64,    // in all; for `consume`: on each connection. 0: as many as fit into `seconds`
    pub seconds: f64,     // 0: until all messages are sent
    pub warm_seconds: f64, // before the clock starts
    pub warm_requests: u64, // the same, on each connection
    pub topics: usize,
    pub handles: usize, // producers of each connection: number n is for topic n % topics, requests go round them
    pub topic: String,
    pub subscription: String,
    pub consumers: usize, // fanout
    pub credit: u32,      // messages that a native consumer asks for ahead
    pub acks: bool,       // a native consumer acks what it gets
    pub pace_ms: u64,     // consume: a pause after each look at the socket
    pub is_stuck: bool,   // consume: asks for messages and never looks at the socket
    pub version: u8,      // MQTT: 4 is 3.1.1
    pub qos: u8,          // MQTT
    pub session: String,  // MQTT, consume: the name of a session that outlives the connection
    pub is_resumed: bool, // MQTT, consume: the session is there, and is subscribed
    pub announce: bool,   // consume: say "ready" when everybody is subscribed
    pub pids: Vec<u32>,   // of the server, for its CPU seconds
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut found = Options {
            connections: 1,
            threads: 1,
            in_flight: 1,
            batch: 1,
            parts: 1,
            size: 100,
            messages: 0,
            seconds: 0.0,
            warm_seconds: 0.0,
            warm_requests: 0,
            topics: 1,
            handles: 0,
            topic: "bench".into(),
            subscription: String::new(),
            consumers: 1,
            credit: 8_000,
            acks: true,
            pace_ms: 0,
            is_stuck: false,
            version: 4,
            qos: 1,
            session: String::new(),
            is_resumed: false,
            announce: false,
            pids: Vec::new(),
        };
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or_else(|| format!("{argument} is not key=value"))?;
            found.set(key, value)?;
        }
        found.handles = found.handles.max(found.topics);
        found.check()?;
        Ok(found)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "connections" => self.connections = value.parse()?,
            "threads" => self.threads = value.parse()?,
            "in_flight" => self.in_flight = value.parse()?,
            "batch" => self.batch = value.parse()?,
            "parts" => self.parts = value.parse()?,
            "size" => self.size = value.parse()?,
            "messages" => self.messages = value.parse()?,
            "seconds" => self.seconds = value.parse()?,
            "warm_seconds" => self.warm_seconds = value.parse()?,
            "warm_requests" => self.warm_requests = value.parse()?,
            "topics" => self.topics = value.parse()?,
            "handles" => self.handles = value.parse()?,
            "topic" => self.topic = value.to_owned(),
            "subscription" => self.subscription = value.to_owned(),
            "consumers" => self.consumers = value.parse()?,
            "credit" => self.credit = value.parse()?,
            "acks" => self.acks = value.parse()?,
            "pace_ms" => self.pace_ms = value.parse()?,
            "stuck" => self.is_stuck = value.parse()?,
            "version" => self.version = value.parse()?,
            "qos" => self.qos = value.parse()?,
            "session" => self.session = value.to_owned(),
            "resumed" => self.is_resumed = value.parse()?,
            "announce" => self.announce = value.parse()?,
            "pids" => self.pids = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            _ => return Err(format!("there is no option {key}").into()),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let counts = [self.connections, self.threads, self.in_flight, self.batch, self.parts, self.topics];
        if counts.contains(&0) {
            return Err("connections, threads, in_flight, batch, parts and topics are at least 1".into());
        }
        if self.batch % self.parts != 0 {
            return Err("the messages of a request do not go into its parts evenly".into());
        }
        if self.messages == 0 && self.seconds == 0.0 {
            return Err("give messages, seconds, or both".into());
        }
        Ok(())
    }

    /// Messages of each part of a request.
    pub fn rows(&self) -> usize {
        self.batch / self.parts
    }

    pub fn topic_of(&self, handle: usize) -> String {
        if self.topics == 1 { self.topic.clone() } else { format!("{}-{}", self.topic, handle % self.topics) }
    }
}
