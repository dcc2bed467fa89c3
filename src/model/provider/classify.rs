//! What a failed round trip means for the books.
//!
//! Owns the classes of the table at the head of the module. Never sees a request: no error can hold one.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use holdpoint_actors::clock::wall;
use holdpoint_core::time::UnixNanos;
use reqwest::Url;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};

use super::connection::NotLoopback;
use super::{ModelError, excerpt};

/// The longest pause that a provider can ask for. Its clock can't be trusted past this, so more counts as nothing asked.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// How much of an answer an error repeats, in bytes, before the mark of the cut.
const BODY_SHOWN_MAX: usize = 2_048;

/// An answer other than a success, as an error tells it: `provider: status: body`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusError {
    /// The provider.
    pub provider: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The beginning of the answer, or what is said of a redirect.
    pub body: String,
    /// How long the provider asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.provider, self.status, self.body)
    }
}

impl Error for StatusError {}

impl StatusError {
    /// The error of an answer with `status`, which is no success. Of a redirect it names the host alone: the rest may
    /// carry what the server was given.
    pub fn of(
        provider: &'static str,
        status: u16,
        headers: &HeaderMap,
        body: &str,
        asked: &Url,
    ) -> StatusError {
        let (body, retry_after) = match status {
            300..400 => (redirected(headers, asked), None),
            _ => (excerpt(body.trim(), BODY_SHOWN_MAX), retry_after(headers)),
        };
        StatusError { provider, status, body, retry_after }
    }
}

impl From<StatusError> for ModelError {
    fn from(error: StatusError) -> ModelError {
        let why = error.to_string();
        if is_transient(error.status) {
            ModelError::Transient { why, retry_after: error.retry_after }
        } else {
            ModelError::Permanent { why }
        }
    }
}

fn redirected(headers: &HeaderMap, asked: &Url) -> String {
    let text = "redirects are not followed";
    let Some(location) = headers.get(LOCATION) else { return text.to_owned() };
    let location = location.to_str().unwrap_or("\\");
    let names_a_host = location.starts_with("//") || location.contains("://");
    match asked.join(location) {
        Ok(url) if names_a_host && url.has_host() => {
            let port = url.port().map_or(String::new(), |port| format!(":{port}"));
            format!(
                "{text}; the answer points to {:?}",
                format!("{}{port}", url.host_str().unwrap_or_default())
            )
        }
        Ok(_) if !location.contains('\\') => format!("{text}; the answer points elsewhere on the same host"),
        Ok(_) | Err(_) => format!("{text}; where the answer points to can't be read"),
    }
}

/// Whether a status is worth another attempt: 408, 409, 425, 429, and 500 and above.
pub fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..)
}

/// How long a provider asks to be left alone, from a header in seconds or with a date.
///
/// None when there is no such header, it can't be read, its time is past, or it is more than [`RETRY_AFTER_MAX`].
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    pause(headers.get(RETRY_AFTER)?.to_str().ok()?.trim(), wall())
}

/// How long a text asks for that is read at `now`.
fn pause(text: &str, now: UnixNanos) -> Option<Duration> {
    let pause = match text.parse::<i64>() {
        Ok(seconds) => Duration::from_secs(u64::try_from(seconds).ok()?),
        Err(_) => {
            let until = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
            let now = Duration::from_nanos(u64::try_from(now.as_nanos()).ok()?);
            until.checked_sub(now)?
        }
    };
    Some(pause).filter(|pause| !pause.is_zero() && *pause <= RETRY_AFTER_MAX)
}

/// What a request that got no answer means.
pub(super) fn unanswered(provider: &'static str, error: reqwest::Error) -> ModelError {
    // An address may hold what it shouldn't.
    let error = error.without_url();
    let why = format!("{provider}: {}", told(&error));
    if error.is_timeout() {
        // The provider may have been at it.
        return ModelError::NoAnswer { why };
    }
    if error.is_builder() || causes(&error).any(is_incurable) {
        return ModelError::Permanent { why };
    }
    let is_no_http =
        causes(&error).any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse));
    if error.is_connect() || is_no_http {
        ModelError::Transient { why, retry_after: None }
    } else {
        // It went out, and the connection was lost.
        ModelError::NoAnswer { why }
    }
}

/// What an answer that ends before its end means: whoever began it has received the request.
pub(super) fn cut_off(provider: &'static str, error: reqwest::Error) -> ModelError {
    ModelError::NoAnswer {
        why: format!("{provider}: the answer was cut off: {}", told(&error.without_url())),
    }
}

/// Another attempt would fare alike.
fn is_incurable(cause: &(dyn Error + 'static)) -> bool {
    let certificate = matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)));
    certificate || cause.is::<NotLoopback>() || cause.downcast_ref().is_some_and(names_no_host)
}

/// The standard library gives a resolver's answer as text alone. These are the words of glibc, musl and macOS for a name
/// that does not exist; whatever else a resolver says may pass.
fn names_no_host(error: &io::Error) -> bool {
    const UNKNOWN: [&str; 5] = [
        "Name or service not known",
        "No address associated with",
        "Name does not resolve",
        "Name has no usable address",
        "nodename nor servname provided",
    ];
    let text = error.to_string();
    text.starts_with("failed to lookup address information")
        && UNKNOWN.iter().any(|words| text.contains(words))
}

/// An error and what caused it. What an I/O error wraps is a cause like any other, although `source` passes over it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// An error with its causes, each said once.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut told = String::new();
    for cause in causes(error).map(ToString::to_string) {
        if told.ends_with(&cause) {
            continue;
        }
        if !told.is_empty() {
            told.push_str(": ");
        }
        told.push_str(&cause);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(reqwest::header::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn in_seconds(seconds: i64) -> String {
        let at = wall().as_nanos() / 1_000_000_000 + seconds;
        httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(u64::try_from(at).unwrap()))
    }

    #[test]
    fn a_pause_is_read_in_seconds_or_from_a_date_and_never_longer_than_an_hour() {
        let asked = |text: &str| retry_after(&headers(&[(RETRY_AFTER, text)]));
        assert_eq!(asked("7"), Some(Duration::from_secs(7)));
        assert_eq!(asked(" 3600 "), Some(RETRY_AFTER_MAX));
        for nothing in ["", "soon", "-3", "0", "3601", "1.5", "99999999999999999999"] {
            assert_eq!(asked(nothing), None, "{nothing:?}");
        }
        let soon = asked(&in_seconds(60)).unwrap();
        assert!(soon > Duration::from_secs(50) && soon <= Duration::from_secs(60), "{soon:?}");
        assert_eq!(asked(&in_seconds(-60)), None);
        assert_eq!(asked(&in_seconds(3_700)), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn a_date_asks_for_what_is_left_until_it_in_each_of_its_three_forms() {
        let at = |text: &str| UnixNanos::parse(text).unwrap();
        for date in
            ["Thu, 01 Oct 2026 10:00:00 GMT", "Thursday, 01-Oct-26 10:00:00 GMT", "Thu Oct  1 10:00:00 2026"]
        {
            let left = |now: &str| pause(date, at(now));
            assert_eq!(left("2026-10-01T09:59:53Z"), Some(Duration::from_secs(7)), "{date}");
            assert_eq!(left("2026-10-01T09:59:52.75Z"), Some(Duration::from_millis(7_250)));
            assert_eq!(left("2026-10-01T09:00:00Z"), Some(RETRY_AFTER_MAX));
            assert_eq!(left("2026-10-01T08:59:59.999999999Z"), None, "more than an hour");
            assert_eq!(left("2026-10-01T10:00:00Z"), None, "it is now");
            assert_eq!(left("2026-10-01T10:00:00.000000001Z"), None, "it is past");
        }
        for unreadable in
            ["2026-10-01T10:00:00Z", "Thu, 01 Oct 2026 10:00:00 CET", "Thu, 32 Oct 2026 10:00:00 GMT"]
        {
            assert_eq!(pause(unreadable, at("2026-10-01T09:59:53Z")), None, "{unreadable}");
        }
    }

    #[test]
    fn a_status_says_whether_to_try_again() {
        let asked = Url::parse("http://127.0.0.1/v1").unwrap();
        let of =
            |status| StatusError::of("ollama", status, &headers(&[(RETRY_AFTER, "7")]), "  busy \n", &asked);
        for status in [408, 409, 425, 429, 500, 503, 529, 599] {
            let error = ModelError::from(of(status));
            let why = format!("ollama: {status}: busy");
            assert_eq!(error, ModelError::Transient { why, retry_after: Some(Duration::from_secs(7)) });
        }
        for status in [400, 401, 403, 404, 413, 422] {
            let why = format!("ollama: {status}: busy");
            assert_eq!(ModelError::from(of(status)), ModelError::Permanent { why });
        }
    }

    #[test]
    fn an_answer_is_repeated_up_to_2048_bytes() {
        let asked = Url::parse("http://127.0.0.1/").unwrap();
        let of = |body: &str| StatusError::of("ollama", 400, &HeaderMap::new(), body, &asked).body;
        assert_eq!(of(&"x".repeat(2_048)), "x".repeat(2_048));
        assert_eq!(of(&"x".repeat(2_049)), format!("{}…", "x".repeat(2_048)));
        assert_eq!(of(&format!("{}é", "x".repeat(2_047))), format!("{}…", "x".repeat(2_047)));
    }

    #[test]
    fn a_redirect_is_told_by_its_host_alone() {
        let asked = Url::parse("https://api.example:8443/v1/messages").unwrap();
        let of = |location: &str| {
            let error = StatusError::of("p", 307, &headers(&[(LOCATION, location)]), "secret body", &asked);
            assert!(matches!(ModelError::from(error.clone()), ModelError::Permanent { .. }));
            error.body
        };
        let elsewhere = "redirects are not followed; the answer points to";
        assert_eq!(of("https://evil.example:1/steal?key=sk"), format!("{elsewhere} \"evil.example:1\""));
        assert_eq!(of("//evil.example/steal"), format!("{elsewhere} \"evil.example\""));
        let same = "redirects are not followed; the answer points elsewhere on the same host";
        assert_eq!(of("/v2/messages?key=sk"), same);
        assert_eq!(of("v2"), same);
        let unreadable = "redirects are not followed; where the answer points to can't be read";
        assert_eq!(of("http://[half"), unreadable);
        let silent = StatusError::of("p", 304, &HeaderMap::new(), "", &asked);
        assert_eq!(silent.to_string(), "p: 304: redirects are not followed");
    }

    #[test]
    fn a_name_that_does_not_exist_is_told_from_a_resolver_that_fails() {
        let says = |text: &str| {
            names_no_host(&io::Error::other(format!("failed to lookup address information: {text}")))
        };
        assert!(says("Name or service not known"));
        assert!(says("No address associated with hostname"));
        assert!(says("nodename nor servname provided, or not known"));
        assert!(!says("Temporary failure in name resolution"));
        assert!(!says("Try again"));
        assert!(!names_no_host(&io::Error::other("Name or service not known")));
    }

    #[test]
    fn causes_are_found_inside_io_errors_too() {
        let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, certificate));
        assert!(causes(&wrapped).any(is_incurable));
        let handshake = io::Error::other(rustls::Error::HandshakeNotComplete);
        assert!(!causes(&handshake).any(is_incurable));
        assert_eq!(told(&io::Error::other("once")), "once");
    }
}
