//! The answer of a run, as one line of JSON.

use std::fmt;
use std::time::Instant;

use crate::poll::cpu_seconds;

/// Time, and CPU time of this process and of the server, between start and stop.
pub struct Clock {
    pids: Vec<u32>,
    began: Instant,
    seconds: f64,
    cpu_seconds: f64,
    server_cpu_seconds: f64,
}

impl Clock {
    pub fn new(pids: &[u32]) -> Self {
        Clock { pids: pids.to_vec(), began: Instant::now(), seconds: 0.0, cpu_seconds: 0.0, server_cpu_seconds: 0.0 }
    }

    pub fn start(&mut self) {
        (self.began, self.cpu_seconds, self.server_cpu_seconds) = (Instant::now(), cpu_seconds(), self.server());
    }

    pub fn stop(&mut self) {
        self.seconds = self.began.elapsed().as_secs_f64();
        self.cpu_seconds = cpu_seconds() - self.cpu_seconds;
        self.server_cpu_seconds = self.server() - self.server_cpu_seconds;
    }

    fn server(&self) -> f64 {
        self.pids.iter().map(|pid| used_by(*pid)).sum()
    }
}

/// CPU seconds of a process, user and system, in the hundredths that /proc knows.
fn used_by(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

pub struct Report {
    messages: u64,
    seconds: f64,
    cpu_seconds: f64,
    server_cpu_seconds: f64,
    latencies_us: Vec<u32>,
    checked: u64,
    disordered: u64,
    first_us: u64,
}

impl Report {
    /// `checked`: messages whose position was looked at.
    pub fn new(messages: u64, clock: &Clock, mut latencies_us: Vec<u32>, checked: u64) -> Self {
        latencies_us.sort_unstable();
        let Clock { seconds, cpu_seconds, server_cpu_seconds, .. } = *clock;
        Report { messages, seconds, cpu_seconds, server_cpu_seconds, latencies_us, checked, disordered: 0, first_us: 0 }
    }

    /// `disordered`: how often a delivered offset did not follow the one before it.
    pub fn with_disordered(self, disordered: u64) -> Self {
        Report { disordered, ..self }
    }

    /// `first_us`: how long a consumer waited for its first message, the slowest of them.
    pub fn with_first(self, first_us: u64) -> Self {
        Report { first_us, ..self }
    }

    /// The smallest that at least this share of all do not exceed.
    fn percentile(&self, share: f64) -> u32 {
        let rank = (self.latencies_us.len() as f64 * share - 1e-9).ceil() as usize;
        self.latencies_us.get(rank.max(1) - 1).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{{\"messages\": {}, \"seconds\": {:.6}, \"cpu_seconds\": {:.6}, \"server_cpu_seconds\": {:.2}, \
             \"p50_us\": {}, \"p99_us\": {}, \"max_us\": {}, \"checked\": {}, \"disordered\": {}, \"first_us\": {}}}",
            self.messages,
            self.seconds,
            self.cpu_seconds,
            self.server_cpu_seconds,
            self.percentile(0.5),
            self.percentile(0.99),
            self.percentile(1.0),
            self.checked,
            self.disordered,
            self.first_us
        )
    }
}
