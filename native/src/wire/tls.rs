//! TLS by certificates that Python read: PEM in, an acceptor out.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{ServerConfig, WebPkiClientVerifier, danger::ClientCertVerifier};
use tokio_rustls::rustls::{RootCertStore, crypto::CryptoProvider};

/// Certificate chain, private key, certificates of the authorities for clients (none: clients show nothing), and whether
/// a client must show one. All of it PEM.
pub type Pem = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, bool);

pub fn acceptor(pem: &Pem) -> PyResult<TlsAcceptor> {
    config(pem)
        .map(|config| TlsAcceptor::from(Arc::new(config)))
        .map_err(|error| PyValueError::new_err(format!("the TLS files cannot be used: {error}")))
}

fn config((chain, key, authorities, required): &Pem) -> Result<ServerConfig, Box<dyn Error>> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(pem) => builder.with_client_cert_verifier(verifier(pem, *required, provider)?),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
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
