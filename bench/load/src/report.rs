//! The answer of a run, as one line of JSON.

use std::fmt;
use std::time::Duration;

pub struct Report {
    messages: u64,
    seconds: f64,
    cpu_seconds: f64,
    latencies_us: Vec<u32>,
}

impl Report {
    pub fn new(messages: u64, took: Duration, cpu_seconds: f64, mut latencies_us: Vec<u32>) -> Self {
        latencies_us.sort_unstable();
        Report { messages, seconds: took.as_secs_f64(), cpu_seconds, latencies_us }
    }

    fn percentile(&self, share: f64) -> u32 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us.get((last as f64 * share) as usize).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{{\"messages\": {}, \"seconds\": {:.6}, \"cpu_seconds\": {:.6}, \"p50_us\": {}, \"p99_us\": {}, \"max_us\": {}}}",
            self.messages,
            self.seconds,
            self.cpu_seconds,
            self.percentile(0.5),
            self.percentile(0.99),
            self.percentile(1.0)
        )
    }
}

/// CPU that this process has used, user and system, from /proc.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
