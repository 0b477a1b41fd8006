//! The server's certificate: rustls, HTTP/2, and what the policy of TLS allows.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

static SINCE_1_2: &[&SupportedProtocolVersion] = &[&TLS12, &TLS13];
static SINCE_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

/// The lowest version of TLS, and the suites of TLS 1.2 by their IANA names; empty: all.
pub struct Policy {
    pub min_version: String,
    pub ciphers: Vec<String>,
}

impl Policy {
    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.min_version == "1.3" {
            SINCE_1_3
        } else {
            SINCE_1_2
        }
    }

    fn allows(&self, suite: &rustls::SupportedCipherSuite) -> bool {
        let name = format!("{:?}", suite.suite());
        suite.tls13().is_some() || self.ciphers.is_empty() || self.ciphers.contains(&name)
    }
}

/// Return what new connections get; an error says why the pair cannot be used.
pub fn config(
    certificate: &[u8],
    key: &[u8],
    policy: &Policy,
) -> Result<Arc<ServerConfig>, String> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| policy.allows(suite));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(policy.versions())
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
