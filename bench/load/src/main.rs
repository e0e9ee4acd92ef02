//! The load generator of the benchmark: one client for every server, so that a figure is the server's.
//!
//!     icestream-load publish native|mqtt|nats|redis-rpush|redis-xadd|redis-rpush-many|store-put|store-get ADDRESS key=value …
//!     icestream-load consume native|mqtt|nats ADDRESS key=value …
//!     icestream-load fanout native|mqtt|nats ADDRESS key=value … one publisher and `consumers` consumers of all of it
//!     icestream-load roundtrip danube ADDRESS key=value …        sent, delivered and acked, `in_flight` on each connection
//!
//! One epoll loop drives all connections (of a thread, where `threads` asks for more). Requests are made before the
//! clock starts; while it runs only their numbers are set. Each answer is counted, and the positions in the answers
//! must follow each other without a hole; so must the positions of what a consumer gets. The answer is one line of
//! JSON: messages, seconds, CPU seconds of this process and of the server's (`pids`), latencies in microseconds. A
//! process that uses about as many CPU seconds as it has threads and seconds was the bound itself.

mod consuming;
mod danube;
mod http2;
mod input;
mod mqtt;
mod msgpack;
mod native;
mod nats;
mod options;
mod party;
mod poll;
mod positions;
mod publishing;
mod redis;
mod report;
mod store;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use consuming::{Consuming, Reading};
use danube::RoundTrips;
use options::Options;
use party::{run, Party};
use publishing::{Publishing, Wire};
use report::{Clock, Report};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match work(&arguments) {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("icestream-load: {error}");
            std::process::exit(1);
        }
    }
}

fn work(arguments: &[String]) -> Result<Report, Failure> {
    let [what, server, address, rest @ ..] = arguments else {
        return Err("usage: icestream-load publish|consume|fanout|roundtrip SERVER ADDRESS key=value …".into());
    };
    let options = Options::parse(rest)?;
    match what.as_str() {
        "publish" => publish(server, address, &options),
        "consume" => consume(server, address, &options),
        "fanout" => fan_out(server, address, &options),
        "roundtrip" => round_trip(server, address, &options),
        _ => Err(format!("there is nothing called {what}").into()),
    }
}

fn wire(server: &str, address: &str, number: usize, options: &Options) -> Result<Box<dyn Wire>, Failure> {
    Ok(match server {
        "native" => Box::new(native::Publisher::open(address, number, options)?),
        "mqtt" => Box::new(mqtt::Publisher::open(address, number, options)?),
        "nats" => Box::new(nats::Publisher::open(address, number, options)?),
        "redis-rpush" => Box::new(redis::Publisher::open(address, redis::Command::Push, options)?),
        "redis-rpush-many" => Box::new(redis::Publisher::open(address, redis::Command::PushMany, options)?),
        "redis-xadd" => Box::new(redis::Publisher::open(address, redis::Command::Add, options)?),
        "store-put" => Box::new(store::Asker::open(address, store::Method::Put, options)?),
        "store-get" => Box::new(store::Asker::open(address, store::Method::Get, options)?),
        _ => return Err(format!("no server is called {server}").into()),
    })
}

fn publishers(server: &str, address: &str, options: &Options) -> Result<Vec<Publishing>, Failure> {
    (0..options.connections)
        .map(|number| Publishing::new(wire(server, address, number, options)?, options))
        .collect()
}

fn consumers(server: &str, address: &str, count: usize, options: &Options) -> Result<Vec<Consuming>, Failure> {
    (0..count)
        .map(|number| {
            let reading: Box<dyn Reading> = match server {
                "native" => Box::new(native::Consumer::open(address, number, options)?),
                "mqtt" => Box::new(mqtt::Consumer::open(address, number, options)?),
                "nats" => Box::new(nats::Consumer::open(address, number, options)?),
                _ => return Err(format!("nothing can be consumed from {server} here").into()),
            };
            Consuming::new(reading, options)
        })
        .collect()
}

fn publish(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    let mut parties = publishers(server, address, options)?;
    if options.warm_seconds > 0.0 || options.warm_requests > 0 {
        let limit = if options.warm_requests > 0 { options.warm_requests } else { u64::MAX };
        let until = (options.warm_seconds > 0.0).then(|| Instant::now() + Duration::from_secs_f64(options.warm_seconds));
        parties.iter_mut().for_each(|one| one.begin(limit, until));
        parties = in_threads(parties, options)?.0;
    }
    parties.iter_mut().for_each(|one| one.plan(options));
    let (parties, clock) = in_threads(parties, options)?;
    let messages = parties.iter().map(|one| one.answered()).sum::<u64>() * options.batch as u64;
    let (latencies, checked) = settled(parties, options)?;
    Ok(Report::new(messages, &clock, latencies, checked))
}

/// The latencies of all requests, and how many messages stand where the answers say.
fn settled(parties: Vec<Publishing>, options: &Options) -> Result<(Vec<u32>, u64), Failure> {
    let (mut latencies, mut seen) = (Vec::new(), Vec::new());
    for one in parties {
        let (waited, positions) = one.end();
        latencies.extend(waited);
        seen.push(positions);
    }
    Ok((latencies, positions::check(seen, options)?))
}

fn consume(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    let mut parties = consumers(server, address, options.connections, options)?;
    if options.announce {
        parties.iter_mut().for_each(|one| one.begin(0));
        parties = in_threads(parties, options)?.0;
        println!("ready");
        if options.is_stuck {
            loop {
                thread::sleep(Duration::from_secs(3600)); // until somebody ends this process
            }
        }
    }
    parties.iter_mut().for_each(|one| one.begin(options.messages));
    let (parties, clock) = in_threads(parties, options)?;
    let messages = parties.iter().map(|one| one.seen()).sum();
    let first_us = parties.iter().filter_map(|one| one.first_us()).max().unwrap_or(0);
    Ok(Report::new(messages, &clock, Vec::new(), messages).with_first(first_us))
}

fn fan_out(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    let mut sending = publishers(server, address, options)?;
    let mut taking = consumers(server, address, options.consumers, options)?;
    taking.iter_mut().for_each(|one| one.begin(0));
    taking = in_threads(taking, options)?.0;
    sending.iter_mut().for_each(|one| one.plan(options));
    let published: u64 = sending.iter().map(|one| one.planned()).sum::<u64>() * options.batch as u64;
    taking.iter_mut().for_each(|one| one.begin(published));
    let parties = sending.into_iter().map(Either::Sends).chain(taking.into_iter().map(Either::Takes)).collect();
    let (parties, clock) = in_threads(parties, options)?;
    let (mut sent, mut delivered) = (Vec::new(), 0);
    for one in parties {
        match one {
            Either::Sends(one) => sent.push(one),
            Either::Takes(one) => delivered += one.seen(),
        }
    }
    let (latencies, checked) = settled(sent, options)?;
    if delivered != published * options.consumers as u64 {
        return Err(format!("{published} messages for {} consumers, {delivered} came", options.consumers).into());
    }
    Ok(Report::new(published, &clock, latencies, checked))
}

fn round_trip(server: &str, address: &str, options: &Options) -> Result<Report, Failure> {
    if server != "danube" {
        return Err(format!("{server} has no round trips here").into());
    }
    let mut parties = (0..options.connections)
        .map(|number| RoundTrips::open(address, number, options))
        .collect::<Result<Vec<_>, _>>()?;
    if options.warm_seconds > 0.0 {
        let until = Instant::now() + Duration::from_secs_f64(options.warm_seconds);
        parties.iter_mut().for_each(|one| one.begin(u64::MAX, Some(until)));
        parties = in_threads(parties, options)?.0;
    }
    let limit = if options.messages == 0 { u64::MAX } else { options.messages.div_ceil(options.connections as u64) };
    let until = (options.seconds > 0.0).then(|| Instant::now() + Duration::from_secs_f64(options.seconds));
    parties.iter_mut().for_each(|one| one.begin(limit, until));
    let (parties, clock) = in_threads(parties, options)?;
    let messages = parties.iter().map(|one| one.acked()).sum();
    let arrived = parties.iter().map(|one| one.arrived()).sum();
    let disordered = parties.iter().map(|one| one.disordered()).sum();
    let latencies = parties.into_iter().flat_map(|one| one.latencies_us()).collect();
    Ok(Report::new(messages, &clock, latencies, arrived).with_disordered(disordered))
}

enum Either {
    Sends(Publishing),
    Takes(Consuming),
}

impl Party for Either {
    fn stream(&self) -> &std::net::TcpStream {
        match self {
            Either::Sends(one) => one.stream(),
            Either::Takes(one) => one.stream(),
        }
    }

    fn turn(&mut self, readable: bool) -> Result<(), Failure> {
        match self {
            Either::Sends(one) => one.turn(readable),
            Either::Takes(one) => one.turn(readable),
        }
    }

    fn has_unsent(&self) -> bool {
        match self {
            Either::Sends(one) => one.has_unsent(),
            Either::Takes(one) => one.has_unsent(),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Either::Sends(one) => one.is_done(),
            Either::Takes(one) => one.is_done(),
        }
    }
}

/// Runs all of them until they are done, on as many threads as the options say: them again, and how long that took.
fn in_threads<P: Party + Send + 'static>(parties: Vec<P>, options: &Options) -> Result<(Vec<P>, Clock), Failure> {
    let count = options.threads.min(parties.len()).max(1);
    let mut shares: Vec<Vec<P>> = (0..count).map(|_| Vec::new()).collect();
    for (number, one) in parties.into_iter().enumerate() {
        shares[number % count].push(one);
    }
    let start = Arc::new(Barrier::new(count + 1));
    let threads: Vec<_> = shares
        .into_iter()
        .map(|mut share| {
            let start = start.clone();
            thread::spawn(move || -> Result<Vec<P>, Failure> {
                start.wait();
                run(&mut share)?;
                Ok(share)
            })
        })
        .collect();
    let mut clock = Clock::new(&options.pids);
    start.wait();
    clock.start();
    let mut back = Vec::new();
    for thread in threads {
        back.extend(thread.join().map_err(|_| "a thread failed")??);
    }
    clock.stop();
    Ok((back, clock))
}
