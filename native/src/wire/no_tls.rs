//! The names of `tls` in a build without TLS: no session can be made.

pub enum Session {}

impl Session {
    pub fn certificate(&self) -> Option<Vec<u8>> {
        match *self {}
    }

    pub fn decrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> bool {
        match *self {}
    }

    pub fn encrypt(&mut self, _: &[&[u8]]) -> Vec<u8> {
        match *self {}
    }

    pub fn end(&mut self) -> Vec<u8> {
        match *self {}
    }

    pub fn output(&mut self) -> Vec<u8> {
        match *self {}
    }
}
