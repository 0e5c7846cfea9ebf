//! The certificate that the webhook serves: given as files, or made by ourselves and kept in a Secret.
//!
//! | module | what it does |
//! |---|---|
//! | this one | a certificate and its key, checked, and the one that is served now |
//! | [`x509`] | reads from when until when a certificate is valid |
//! | [`authority`] | makes and renews a CA and a serving certificate; arithmetic about time, no I/O |
//! | [`cluster`] | keeps them in a Secret that replicas share, and the CA in the webhook's configuration |

pub mod authority;
pub mod cluster;
pub mod x509;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::metrics::Metrics;
use crate::reload::{Current, Files};

/// A certificate with its chain and its key, which belong together.
#[derive(Debug)]
pub struct Certificate {
    key: Arc<CertifiedKey>,
    expires: i64,
}

impl Certificate {
    /// From PEM: the certificate first, then what it was issued by; and its key.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Certificate, String> {
        let chain = chain(certificates)?;
        let first = chain.first().ok_or("there is no certificate: expected `-----BEGIN CERTIFICATE-----`")?;
        let expires = x509::validity(first)?.not_after;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|why| format!("the key cannot be read ({why}): expected `-----BEGIN PRIVATE KEY-----`"))?;
        let key = provider()
            .key_provider
            .load_private_key(key)
            .map_err(|why| format!("the key cannot be used ({why}): expected one for ECDSA, Ed25519 or RSA"))?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match().map_err(|why| format!("the key is not the certificate's ({why})"))?;
        Ok(Certificate { key: Arc::new(key), expires })
    }

    /// When it ends, in seconds since 1970.
    pub fn expires(&self) -> i64 {
        self.expires
    }
}

/// All certificates in a PEM text.
pub fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|why| format!("the certificate cannot be read ({why}): expected `-----BEGIN CERTIFICATE-----`"))
}

/// Where cryptography is done, for servers and clients alike.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificate that is served now. Connections that are open keep theirs.
#[derive(Debug)]
pub struct Served(Current<Option<Arc<CertifiedKey>>>);

impl Default for Served {
    fn default() -> Served {
        Served(Current::new(None))
    }
}

impl Served {
    /// Serves this one from now on.
    pub fn set(&self, certificate: &Certificate) {
        self.0.set(Some(Arc::clone(&certificate.key)));
    }

    /// Whether there is one yet.
    pub fn ready(&self) -> bool {
        self.0.get().is_some()
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get().as_ref().clone()
    }
}

/// Serves what is in the files, and looks whether they changed.
#[derive(Debug)]
pub struct FromFiles {
    files: Files,
}

impl FromFiles {
    /// Takes what is there at the start: where that is nothing usable, nothing can be served.
    pub fn start(certificate: &str, key: &str, served: &Served, metrics: &Metrics) -> Result<FromFiles, String> {
        let mut files = Files::new([certificate, key]);
        let first = parse(files.take())?;
        take(&first, served, metrics);
        Ok(FromFiles { files })
    }

    /// Takes what is new. What cannot be used is said, and changes nothing.
    pub fn look(&mut self, served: &Served, metrics: &Metrics) {
        let Some(contents) = self.files.changed() else { return };
        match parse(contents) {
            Ok(certificate) => take(&certificate, served, metrics),
            Err(why) => {
                metrics.certificate_failed();
                tracing::error!(why, "the new certificate cannot be used; the old one is served on");
            }
        }
    }
}

fn parse(contents: crate::reload::Contents) -> Result<Certificate, String> {
    match contents?.as_slice() {
        [certificate, key] => Certificate::from_pem(certificate, key),
        _ => Err("expected a certificate and a key".to_owned()),
    }
}

fn take(certificate: &Certificate, served: &Served, metrics: &Metrics) {
    served.set(certificate);
    metrics.certificate_taken(certificate.expires);
    tracing::info!(expires = %x509::written(certificate.expires), "a certificate is served");
    if certificate.expires <= unix_now() {
        tracing::warn!("the certificate has expired: the API server will refuse it");
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
