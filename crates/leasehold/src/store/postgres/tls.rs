//! Encryption, and whose word is taken on who the server is.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, ErrorKind, Result};

/// Whom to believe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trust<'a> {
    /// Whoever answers: no more than that nobody who only listens can read.
    Anybody,
    /// The system's authorities.
    System,
    /// Those of a file, and no others.
    File(&'a Path),
}

pub(super) fn connector(trust: Trust<'_>) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| invalid("this build knows no encryption").with_source(error))?;
    let config = match trust {
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))).with_no_client_auth()
        }
        Trust::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::File(path) => builder.with_root_certificates(roots(path)?).with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let pem = std::fs::read(path)
        .map_err(|error| invalid(format!("cannot read {}: {error}", path.display())).with_source(error))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(std::result::Result::ok).collect();
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err(invalid(format!("{} holds no certificates in PEM", path.display())));
    }
    Ok(roots)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

/// Believes every certificate whose key the server has.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
