//! One round trip to a provider, and the client that makes it.
//!
//! Owns the bound on what is read, that no redirect is followed, and that what is meant for this machine stays on it.
//! Never retries and reads nothing of an answer but its text.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::model::Usage;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response};
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::classify::{StatusError, cut_off, unanswered};
use super::{ApiKey, ConfigError, Endpoint, ModelError};

/// The longest answer that is read, in bytes. One of exactly this length is fine.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a round trip may take when the client is ours. A backstop: what bounds an attempt is its caller's timeout,
/// and no provider takes this long for an answer that is not streamed.
pub const TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A builder with what an adapter's own client has: TLS by ring with the system's roots of trust, no redirects, and
/// [`TIMEOUT`]. Start from it when an adapter needs a client of yours, for a proxy or a shorter timeout.
///
/// # Errors
/// When the system's roots of trust can't be read.
pub fn client_builder() -> Result<ClientBuilder, rustls::Error> {
    let tls = tls()?.with_platform_verifier()?.with_no_client_auth();
    Ok(plain_builder(tls))
}

/// For a server that is never spoken to in TLS: it works where the system has no roots of trust.
pub(in crate::model) fn clear_builder() -> Result<ClientBuilder, rustls::Error> {
    let nobody = rustls::RootCertStore::empty();
    Ok(plain_builder(tls()?.with_root_certificates(nobody).with_no_client_auth()))
}

/// The provider is named here, so that nothing has to be installed for the whole process.
fn tls() -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
}

fn plain_builder(tls: rustls::ClientConfig) -> ClientBuilder {
    Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).timeout(TIMEOUT)
}

/// A name that was to be this machine led elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("{name} resolves to no loopback address, and a key over plain http stays on this machine")]
pub(super) struct NotLoopback {
    name: String,
}

/// Keeps to loopback addresses whatever a name resolves to. What is dialled is what this gives: such a client has no
/// proxy, and addresses that are written out were checked with the endpoint.
struct LoopbackOnly<L>(L);

impl<L: Lookup> Resolve for LoopbackOnly<L> {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let found = self.0.lookup(name.clone());
        Box::pin(async move {
            let mut found = found.await?;
            found.retain(|address| address.ip().to_canonical().is_loopback());
            if found.is_empty() {
                return Err(NotLoopback { name }.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// How a name becomes addresses; a test has its own.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, name: String) -> Found;
}

pub(super) type Found = std::pin::Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The system's resolver.
struct System;

impl Lookup for System {
    fn lookup(&self, name: String) -> Found {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
    }
}

/// A way to one provider: its address, its client and its key.
#[derive(Clone)]
pub struct Connection {
    provider: &'static str,
    endpoint: Endpoint,
    client: Client,
    headers: HeaderMap,
    key: ApiKey,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("provider", &self.provider)
            .field("base", &self.endpoint.base())
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects an adapter to `endpoint`. Nothing is sent yet.
    ///
    /// Without a `client` of the caller's there is one without redirects, with [`TIMEOUT`], and with the environment's
    /// proxy except for this machine. A key over plain http then reaches loopback addresses alone, whatever `localhost`
    /// resolves to. With a client of the caller's, its redirects, its proxy and where it connects to are its owner's.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn new(
        provider: &'static str,
        endpoint: Endpoint,
        key: ApiKey,
        client: Option<Client>,
    ) -> Result<Connection, ConfigError> {
        let client = match client {
            Some(client) => client,
            None => own_client(&endpoint, &key, System)
                .map_err(|why| ConfigError::Client { provider, why: why.to_string() })?,
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Connection { provider, endpoint, client, headers, key })
    }

    /// Sends `name: value` with every request.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: HeaderValue) -> Connection {
        self.headers.insert(name, value);
        self
    }

    /// The address without slashes at its end.
    pub fn base(&self) -> &str {
        self.endpoint.base()
    }

    /// Sends `body` to `path` below the address and gives the text of a successful answer. Dropped while it waits, the
    /// attempt counts as sent.
    ///
    /// # Errors
    /// As the table at the head of the module says, and [`ModelError::Served`] without a usage when the answer is no text.
    pub async fn post(&self, path: &str, body: String) -> Result<String, ModelError> {
        let url = format!("{}{path}", self.endpoint.base());
        let sent = self.client.post(url).headers(self.headers.clone()).body(body).send().await;
        let answer = sent.map_err(|error| unanswered(self.provider, error))?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = self.read(answer).await?;
        if (200..300).contains(&status) {
            return String::from_utf8(bytes)
                .map_err(|_| super::served(self.provider, Usage::default(), "the answer is not UTF-8"));
        }
        let told = self.redact(&String::from_utf8_lossy(&bytes));
        let error = StatusError::of(self.provider, status, &headers, &told, self.endpoint.url());
        Err(error.into())
    }

    /// A provider's text without the key, should it repeat it. Errors are made of this.
    pub fn redact(&self, text: &str) -> String {
        self.key.redact(text)
    }

    async fn read(&self, mut answer: Response) -> Result<Vec<u8>, ModelError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| cut_off(self.provider, error))? {
            if bytes.len() + chunk.len() > BODY_BYTES_MAX {
                let why = format!("{}: the answer is longer than {BODY_BYTES_MAX} bytes", self.provider);
                return Err(ModelError::Permanent { why });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

pub(super) fn own_client(
    endpoint: &Endpoint,
    key: &ApiKey,
    lookup: impl Lookup,
) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = if endpoint.is_encrypted() { client_builder()? } else { clear_builder()? };
    if endpoint.is_loopback() {
        builder = builder.no_proxy();
    }
    if !key.is_empty() && !endpoint.is_encrypted() {
        builder = builder.dns_resolver(LoopbackOnly(lookup));
    }
    Ok(builder.build()?)
}
