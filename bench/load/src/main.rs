//! The load generator of the benchmark: one client for every server, so that a figure is the server's.
//!
//!     icestream-load publish native|nats|redis-rpush|redis-xadd ADDRESS key=value …
//!     icestream-load consume native|nats ADDRESS key=value …
//!
//! Each connection has a thread of its own, sends as long as its window has room, and reads what is answered. The answer
//! is one line of JSON: messages, seconds, latencies of requests in microseconds, CPU seconds of this process.

mod connection;
mod msgpack;
mod native;
mod nats;
mod options;
mod redis;
mod report;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use connection::{drain, pump, Reading, Wire};
use options::Options;
use report::{cpu_seconds, Report};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("icestream-load: {error}");
            std::process::exit(1);
        }
    }
}

fn run(arguments: &[String]) -> Result<Report, Failure> {
    let [what, server, address, rest @ ..] = arguments else {
        return Err("usage: icestream-load publish|consume SERVER ADDRESS key=value …".into());
    };
    let options = Options::parse(rest)?;
    match what.as_str() {
        "publish" => publish(server, address, &options),
        "consume" => consume(server, address, &options),
        _ => Err(format!("there is nothing called {what}").into()),
    }
}

fn publisher(server: &str, address: &str, number: usize, options: &Options) -> Result<Box<dyn Wire>, Failure> {
    Ok(match server {
        "native" => Box::new(native::Publisher::open(address, number, options)?),
        "nats" => Box::new(nats::Publisher::open(address, number, options)?),
        "redis-rpush" => Box::new(redis::Publisher::open(address, "RPUSH", options)?),
        "redis-xadd" => Box::new(redis::Publisher::open(address, "XADD", options)?),
        _ => return Err(format!("no server is called {server}").into()),
    })
}

fn publish(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    let start = Arc::new(Barrier::new(options.connections + 1));
    let mut threads = Vec::new();
    for number in 0..options.connections {
        let (server, address) = (server.to_owned(), address.to_owned());
        let (options, start) = (options.clone(), start.clone());
        threads.push(thread::spawn(move || -> Result<Vec<u32>, Failure> {
            let opened = publisher(&server, &address, number, &options);
            start.wait();
            pump(opened?.as_mut(), &options)
        }));
    }
    start.wait();
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().map_err(|_| "a connection's thread failed")??);
    }
    let messages = options.requests_in_all() * options.batch as u64;
    Ok(Report::new(messages, began.elapsed(), cpu_seconds() - cpu, latencies))
}

fn consume(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    let start = Arc::new(Barrier::new(options.connections + 1));
    let mut threads = Vec::new();
    for number in 0..options.connections {
        let (server, address) = (server.to_owned(), address.to_owned());
        let (options, start) = (options.clone(), start.clone());
        threads.push(thread::spawn(move || -> Result<u64, Failure> {
            let opened: Result<Box<dyn Reading>, Failure> = match server.as_str() {
                "native" => native::Consumer::open(&address, number, &options).map(|one| Box::new(one) as _),
                "nats" => nats::Consumer::open(&address, number, &options).map(|one| Box::new(one) as _),
                _ => Err(format!("nothing can be consumed from {server} here").into()),
            };
            start.wait();
            drain(opened?.as_mut(), options.messages)
        }));
    }
    start.wait();
    if options.announce {
        println!("ready");
    }
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut messages = 0;
    for thread in threads {
        messages += thread.join().map_err(|_| "a connection's thread failed")??;
    }
    Ok(Report::new(messages, began.elapsed(), cpu_seconds() - cpu, Vec::new()))
}
