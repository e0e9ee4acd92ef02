//! TLS by certificates that Python read: PEM in, a configuration out; and one session of a connection, without I/O.
//!
//! A session turns bytes of the socket into bytes of the protocol and back. After `decrypt` no byte that the peer sent
//! whole waits in it: epoll knows what lies in the kernel, and nothing of what lies here.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, SupportedProtocolVersion, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::io::{Read, Write};
use std::sync::Arc;

/// Certificate chain, private key, certificates of the authorities for clients (none: clients show nothing), whether a
/// client must show one, and whether TLS 1.2 is refused. The first three are PEM.
pub type Pem = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, bool, bool);

static VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// `protocols`: what the listener offers by ALPN.
pub fn server_config(pem: &Pem, protocols: &[&[u8]]) -> PyResult<Arc<ServerConfig>> {
    config(pem, protocols)
        .map(Arc::new)
        .map_err(|error| PyValueError::new_err(format!("the TLS files cannot be used: {error}")))
}

/// Raises ValueError for files that no listener could use: a key of another certificate, half of a file.
#[pyfunction]
pub fn check_tls(pem: Pem) -> PyResult<()> {
    server_config(&pem, &[]).map(drop)
}

fn config(pem: &Pem, protocols: &[&[u8]]) -> Result<ServerConfig, Box<dyn Error>> {
    let (chain, key, authorities, required, is_latest_only) = pem;
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&VERSIONS[..if *is_latest_only { 1 } else { 2 }])?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(pem) => builder.with_client_cert_verifier(verifier(pem, *required, provider)?),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn verifier(
    pem: &[u8],
    required: bool,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok(if required { builder.build()? } else { builder.allow_unauthenticated().build()? })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Box<dyn Error>> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() { Err("there is no certificate in it".into()) } else { Ok(all) }
}

/// The connection of one peer.
pub struct Session {
    connection: Box<ServerConnection>,
}

impl Session {
    pub fn new(config: Arc<ServerConfig>) -> Option<Session> {
        let mut connection = ServerConnection::new(config).ok()?;
        // What the peer does not take is bounded by the queue of its socket.
        connection.set_buffer_limit(None);
        Some(Session { connection: Box::new(connection) })
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The verified certificate of the peer, in DER.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.connection.peer_certificates()?.first().map(|first| first.to_vec())
    }

    /// Appends what `arrived` says to `plain`. Returns whether the peer may send more: not after its end, and not after
    /// bytes that are not TLS. What is to be sent because of them is in `output`.
    pub fn decrypt(&mut self, mut arrived: &[u8], plain: &mut Vec<u8>) -> bool {
        while !arrived.is_empty() {
            let is_read = self.connection.read_tls(&mut arrived).is_ok_and(|count| count > 0);
            if !is_read {
                return false;
            }
            let Ok(state) = self.connection.process_new_packets() else { return false };
            if state.plaintext_bytes_to_read() > 0 {
                let start = plain.len();
                plain.resize(start + state.plaintext_bytes_to_read(), 0);
                if self.connection.reader().read_exact(&mut plain[start..]).is_err() {
                    plain.truncate(start);
                    return false;
                }
            }
            if state.peer_has_closed() {
                return false;
            }
        }
        true
    }

    /// The pieces as they leave, behind everything that is to be sent before them.
    pub fn encrypt(&mut self, pieces: &[&[u8]]) -> Vec<u8> {
        let mut writer = self.connection.writer();
        for piece in pieces {
            let _ = writer.write_all(piece); // into memory
        }
        self.output()
    }

    /// Says that nothing follows.
    pub fn end(&mut self) -> Vec<u8> {
        self.connection.send_close_notify();
        self.output()
    }

    /// What TLS itself has to send: its handshake, alerts, new keys.
    pub fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            let _ = self.connection.write_tls(&mut bytes); // into memory
        }
        bytes
    }
}
