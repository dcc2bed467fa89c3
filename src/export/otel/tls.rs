//! The certificates that the environment names: by which roots a collector is trusted, and who we are to it.
//!
//! Owns the files, which are read once, before anything is sent: a file that can't be used is an error then, and not a
//! collector that is never reached. Never prints what stands in one.

use std::fs;
use std::sync::Arc;

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::settings::{Named, TlsFiles};

/// What a signal's connections over TLS are made of.
#[derive(Default)]
pub(super) struct Tls {
    roots: Option<Pem>,
    client: Option<(Pem, Pem)>,
}

/// A file's text, and the variable that named it.
struct Pem {
    named: Named,
    text: Vec<u8>,
}

impl Tls {
    /// Reads the files.
    pub(super) fn read(files: &TlsFiles) -> Result<Tls, String> {
        let tls = Tls {
            roots: files.roots.as_ref().map(Pem::read).transpose()?,
            client: match &files.client {
                Some((certificate, key)) => Some((Pem::read(certificate)?, Pem::read(key)?)),
                None => None,
            },
        };
        if tls.roots.is_some() || tls.client.is_some() {
            // Whichever protocol is spoken, the same files are refused with the same words.
            tls.config()?;
        }
        Ok(tls)
    }

    /// For a client over HTTP.
    pub(super) fn config(&self) -> Result<ClientConfig, String> {
        let unusable = |error: rustls::Error| format!("TLS can't be used: {error}");
        // The provider is named here, so that nothing has to be installed for the whole process.
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match &self.roots {
            Some(pem) => builder.with_root_certificates(pem.roots()?),
            None => builder
                .with_platform_verifier()
                .map_err(|error| format!("the system's roots of trust can't be used: {error}"))?,
        };
        match &self.client {
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificate.chain()?, key.key()?)
                .map_err(|error| key.refused(&format!("does not belong to the certificate: {error}"))),
            None => Ok(builder.with_no_client_auth()),
        }
    }

    /// For a client over gRPC. Not used where an endpoint is plain http.
    pub(super) fn of_grpc(&self) -> ClientTlsConfig {
        let config = match &self.roots {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&pem.text)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match &self.client {
            Some((certificate, key)) => config.identity(Identity::from_pem(&certificate.text, &key.text)),
            None => config,
        }
    }
}

impl Pem {
    fn read(named: &Named) -> Result<Pem, String> {
        let read = fs::read(&named.path);
        let text = read.map_err(|error| named.refused(&format!("can't be read: {error}")))?;
        Ok(Pem { named: named.clone(), text })
    }

    fn refused(&self, why: &str) -> String {
        self.named.refused(why)
    }

    /// The certificates of the file; at least one.
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        match read {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            Ok(_) | Err(_) => Err(self.refused("holds no certificate in PEM")),
        }
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.chain()? {
            roots
                .add(certificate)
                .map_err(|error| self.refused(&format!("holds no certificate to trust: {error}")))?;
        }
        Ok(roots)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|_| self.refused("holds no private key in PEM that is not encrypted"))
    }
}
