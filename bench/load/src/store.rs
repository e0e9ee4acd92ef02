//! The port of a node of the metadata store (bench/raft/client_port.py): puts or gets of one key, a request each.
//!
//!     a frame     u32, little endian: the size of what follows; one msgpack array
//!     request     number, method, arguments…
//!     answer      number, 0, what was asked for; anything else in the place of 0 is an error

use std::net::TcpStream;

use crate::msgpack;
use crate::options::Options;
use crate::party::connect;
use crate::positions::Positions;
use crate::publishing::Wire;
use crate::Failure;

const KEY: &str = "/bench/key";
const SIZE_BYTES: usize = 4;
const NUMBER: u8 = 1; // of each request: the answers of a connection come in turn
const NIL: u8 = 0xc0;

#[derive(Clone, Copy, PartialEq)]
pub enum Method {
    Put,
    Get,
}

pub struct Asker {
    stream: TcpStream,
    method: Method,
    request: Vec<u8>,
    answers: u64,
}

impl Asker {
    pub fn open(address: &str, method: Method, options: &Options) -> Result<Self, Failure> {
        let mut body = vec![if method == Method::Put { 0x94 } else { 0x93 }, NUMBER];
        msgpack::text(&mut body, if method == Method::Put { "put_here" } else { "get" });
        msgpack::text(&mut body, KEY);
        if method == Method::Put {
            msgpack::bytes(&mut body, &vec![0; options.size]);
        }
        let mut request = (body.len() as u32).to_le_bytes().to_vec();
        request.extend_from_slice(&body);
        Ok(Asker { stream: connect(address)?, method, request, answers: 0 })
    }

    /// A revision rises from answer to answer; a value must be there.
    fn take(&mut self, answer: &[u8], seen: &mut Positions) -> Result<(), Failure> {
        let [0x93, NUMBER, 0, found @ ..] = answer else {
            return Err(format!("the node refuses: {}", String::from_utf8_lossy(answer)).into());
        };
        self.answers += 1;
        match self.method {
            Method::Put => seen.add_rising((msgpack::integer(found)?, 0)),
            Method::Get if found != [NIL] => seen.add_rising((self.answers, 0)),
            Method::Get => Err("the key is not there".into()),
        }
    }
}

impl Wire for Asker {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn slots(&self) -> Vec<Vec<u8>> {
        vec![self.request.clone()]
    }

    fn stamp(&mut self, _: &mut [u8]) {}

    fn answered(&mut self, data: &[u8], seen: &mut Positions, _: &mut Vec<u8>) -> Result<(usize, usize), Failure> {
        let (mut count, mut at) = (0, 0);
        while let Some(head) = data[at..].first_chunk::<SIZE_BYTES>() {
            let size = u32::from_le_bytes(*head) as usize;
            let Some(answer) = data.get(at + SIZE_BYTES..at + SIZE_BYTES + size) else { break };
            self.take(answer, seen)?;
            at += SIZE_BYTES + size;
            count += 1;
        }
        Ok((count, at))
    }
}
