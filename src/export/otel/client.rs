//! How OTLP travels over HTTP: one client, on the exporter's runtime, whatever thread asks.
//!
//! Owns the bound on an answer, and that no redirect is followed. Keeps what went wrong last, because the exporter above
//! tells only that something did. Never logs or keeps a header.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::Client;
use reqwest::redirect::Policy;
use rustls::ClientConfig;
use tokio::runtime::Handle;

/// The most bytes of an answer that are read: a collector says how much it rejected, and why.
const ANSWER_BYTES_MAX: usize = 64 * 1_024;

/// What went wrong last.
#[derive(Debug, Clone, Default)]
pub(super) struct LastTrouble(Arc<Mutex<Option<String>>>);

impl LastTrouble {
    fn keep(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The client. Cheap to clone.
#[derive(Clone)]
pub(super) struct Http {
    client: Client,
    runtime: Handle,
    trouble: LastTrouble,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    /// A client each of whose requests ends within `timeout`.
    pub(super) fn new(
        runtime: Handle,
        timeout: Duration,
        tls: ClientConfig,
        trouble: LastTrouble,
    ) -> Result<Http, String> {
        let builder =
            Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).timeout(timeout);
        let client = builder.build().map_err(|error| format!("no HTTP client can be made: {error}"))?;
        Ok(Http { client, runtime, trouble })
    }
}

#[async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        // Who asks may stand on a thread without a runtime: the metrics' reader does.
        let sent = self.runtime.spawn(async move { send(&client, request).await }).await?;
        let trouble = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(causes(&**error)),
        };
        self.trouble.keep(trouble);
        sent
    }
}

async fn send(client: &Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    // Its address may hold a password.
    let plain = |error: reqwest::Error| error.without_url();
    let mut answer = client.execute(request.try_into()?).await.map_err(plain)?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(plain)? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES_MAX {
            return Err(format!("its answer is longer than {ANSWER_BYTES_MAX} bytes").into());
        }
    }
    let mut whole = Response::builder().status(answer.status());
    if let Some(headers) = whole.headers_mut() {
        *headers = std::mem::take(answer.headers_mut());
    }
    Ok(whole.body(Bytes::from(body))?)
}

/// An error with what caused it, which is where the operating system's own words are.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
