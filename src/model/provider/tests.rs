//! Tests of a round trip, its failures, and where a key may go, against fake servers on this machine.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use holdpoint_core::model::Usage;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::connection::{Found, Lookup, clear_builder, own_client};
use super::*;
use crate::model::fake::{Act, Fake, KEY};

fn connection(base: &str, key: &str) -> Connection {
    let endpoint = Endpoint::check("p", base, !key.is_empty()).unwrap();
    let key = ApiKey::from(key);
    let header = key.header("p", "Bearer ").unwrap();
    Connection::new("p", endpoint, key, None).unwrap().with_header("authorization", header)
}

async fn post(base: &str) -> Result<String, ModelError> {
    connection(base, KEY).post("/v1", "{}".to_owned()).await
}

fn why(error: ModelError) -> (&'static str, String) {
    match error {
        ModelError::Transient { why, .. } => ("transient", why),
        ModelError::NoAnswer { why } => ("no answer", why),
        ModelError::Served { why, .. } => ("served", why),
        ModelError::UnusableUsage { why } => ("unusable usage", why),
        ModelError::Permanent { why } => ("permanent", why),
    }
}

#[tokio::test]
async fn a_round_trip_sends_the_body_and_gives_the_answer() {
    let fake = Fake::start([Act::ok("{\"n\": 1.0}\n")]).await;
    let text = connection(&format!("{}/base//", fake.url()), KEY)
        .post("/chat", "{\"a\":1}".to_owned())
        .await
        .unwrap();
    assert_eq!(text, "{\"n\": 1.0}\n");
    let asked = &fake.asked()[0];
    assert_eq!((asked.line.as_str(), asked.body.as_str()), ("POST /base/chat HTTP/1.1", "{\"a\":1}"));
    assert_eq!(asked.headers["content-type"], "application/json");
    assert_eq!(asked.headers["authorization"], format!("Bearer {KEY}"));
    assert!(!asked.headers.contains_key("accept-encoding"));
}

#[tokio::test]
async fn nobody_who_answers_makes_it_a_failure_that_may_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (class, text) = why(post(&format!("http://{address}")).await.unwrap_err());
    assert_eq!(class, "transient");
    assert!(text.starts_with("p: ") && text.to_lowercase().contains("connection refused"), "{text}");
    assert!(!text.contains("http://"), "an address may hold what it shouldn't: {text}");
}

#[tokio::test]
async fn a_connection_that_is_lost_after_the_request_leaves_it_open_whether_it_was_served() {
    let fake = Fake::start([
        Act::Bytes(Vec::new()),
        Act::Bytes(b"HTTP/1.1 200 OK\r\ncontent-le".to_vec()),
        Act::cut_off("{\"usage\":{}"),
        Act::Bytes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":".to_vec()),
        // Cut off inside what would be a failure: nobody knows what the rest said.
        Act::Bytes(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\nbu".to_vec()),
    ])
    .await;
    for case in 0..5 {
        let (class, text) = why(post(&fake.url()).await.unwrap_err());
        assert_eq!(class, "no answer", "case {case}: {text}");
    }
    assert_eq!(fake.asked().len(), 5, "the client tries nothing again");
}

#[tokio::test]
async fn a_timeout_leaves_it_open_whether_it_was_served() {
    let fake = Fake::start([Act::Silence]).await;
    let client = client_builder_for_tests().timeout(Duration::from_millis(50)).build().unwrap();
    let endpoint = Endpoint::check("p", &fake.url(), false).unwrap();
    let connection = Connection::new("p", endpoint, ApiKey::default(), Some(client)).unwrap();
    let (class, text) = why(connection.post("/v1", String::new()).await.unwrap_err());
    assert_eq!(class, "no answer", "{text}");
    assert!(text.contains("timed out"), "{text}");
}

fn client_builder_for_tests() -> reqwest::ClientBuilder {
    clear_builder().unwrap().no_proxy()
}

#[tokio::test]
async fn an_answer_that_is_no_http_may_pass() {
    let fake = Fake::start([Act::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec())]).await;
    let (class, text) = why(post(&fake.url()).await.unwrap_err());
    assert_eq!(class, "transient", "{text}");
}

#[tokio::test]
async fn a_busy_provider_is_asked_again_when_it_says_so() {
    let busy = |after: &str| Act::Answer(429, vec![("Retry-After", after.to_owned())], b"slow down".to_vec());
    let fake =
        Fake::start([busy("7"), busy("86400"), Act::status(529, "overloaded"), Act::status(401, "who?")])
            .await;
    let slow_down = "p: 429: slow down".to_owned();
    let seven = Some(Duration::from_secs(7));
    let expected = [
        ModelError::Transient { why: slow_down.clone(), retry_after: seven },
        ModelError::Transient { why: slow_down, retry_after: None },
        ModelError::Transient { why: "p: 529: overloaded".to_owned(), retry_after: None },
        ModelError::Permanent { why: "p: 401: who?".to_owned() },
    ];
    for error in expected {
        assert_eq!(post(&fake.url()).await, Err(error));
    }
}

#[tokio::test]
async fn a_redirect_is_followed_nowhere() {
    let target = Fake::start([]).await;
    let to = vec![("Location", format!("{}/steal?key={KEY}", target.url()))];
    let fake = Fake::start([Act::Answer(307, to, format!("go with {KEY}").into_bytes())]).await;
    let (class, text) = why(post(&fake.url()).await.unwrap_err());
    assert_eq!(class, "permanent");
    assert_eq!(
        text,
        format!("p: 307: redirects are not followed; the answer points to {:?}", target.address)
    );
    assert!(target.asked().is_empty());
}

#[tokio::test]
async fn an_answer_of_16_mib_is_read_and_one_byte_more_is_refused() {
    let whole = vec![b'y'; BODY_BYTES_MAX];
    let mut longer = whole.clone();
    longer.push(b'y');
    let busy = Act::Answer(503, Vec::new(), longer.clone());
    let fake = Fake::start([Act::ok(whole), Act::ok(longer), busy]).await;
    assert_eq!(post(&fake.url()).await.unwrap().len(), BODY_BYTES_MAX);
    for _ in ["an answer", "a failure"] {
        let (class, text) = why(post(&fake.url()).await.unwrap_err());
        assert_eq!((class, text.as_str()), ("permanent", "p: the answer is longer than 16777216 bytes"));
    }
}

#[tokio::test]
async fn an_answer_that_is_no_text_was_served() {
    let fake = Fake::start([Act::ok(b"\xff\xfe".to_vec())]).await;
    let expected =
        ModelError::Served { usage: Usage::default(), why: "p: the answer is not UTF-8".to_owned() };
    assert_eq!(post(&fake.url()).await, Err(expected));
}

const CERTIFICATE: &str = include_str!("localhost/certificate.pem");

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()
}

/// A TLS server for `localhost` on a thread of its own, which answers one request. Its key is a test's and no secret.
fn tls_server() -> (u16, std::thread::JoinHandle<Option<String>>) {
    let certificate = certificate();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(include_bytes!("localhost/key.der").to_vec()));
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (tcp, _) = listener.accept().ok()?;
        let connection = rustls::ServerConnection::new(Arc::new(config)).ok()?;
        let mut stream = rustls::StreamOwned::new(connection, tcp);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n{}") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            head.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").ok()?;
        stream.conn.send_close_notify();
        stream.flush().ok()?;
        String::from_utf8(head).ok()
    });
    (port, serving)
}

async fn post_in_tls(port: u16, roots: rustls::RootCertStore) -> Result<String, ModelError> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = client_builder_for_tests().tls_backend_preconfigured(tls).build().unwrap();
    let endpoint = Endpoint::check("p", &format!("https://localhost:{port}"), true).unwrap();
    let key = ApiKey::from(KEY);
    let header = key.header("p", "").unwrap();
    let connection =
        Connection::new("p", endpoint, key, Some(client)).unwrap().with_header("x-api-key", header);
    connection.post("/v1", "{}".to_owned()).await
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_incurable_and_gets_no_key() {
    let (port, serving) = tls_server();
    let (class, text) = why(post_in_tls(port, rustls::RootCertStore::empty()).await.unwrap_err());
    assert_eq!(class, "permanent", "{text}");
    assert!(text.contains("certificate"), "{text}");
    assert_eq!(serving.join().unwrap(), None);
}

#[tokio::test]
async fn a_trusted_server_gets_the_key_in_tls() {
    let (port, serving) = tls_server();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate()).unwrap();
    assert_eq!(post_in_tls(port, roots).await.unwrap(), "{}");
    let head = serving.join().unwrap().unwrap();
    assert!(head.contains(&format!("x-api-key: {KEY}")), "{head}");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_may_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // Open until the client has seen enough.
        drop(stream.read_to_end(&mut Vec::new()).await);
    });
    let (class, text) = why(post_in_tls(port, rustls::RootCertStore::empty()).await.unwrap_err());
    serving.await.unwrap();
    assert_eq!(class, "transient", "{text}");
}

/// Names the port that the test below asks as a process of its own.
const ASKED_PORT: &str = "HOLDPOINT_TEST_ASKED_PORT";

// What the system trusts is looked up in the environment first, which a test may not change under its neighbours: another
// process asks. Apple's systems are not told so.
#[cfg(not(target_vendor = "apple"))]
#[tokio::test]
async fn a_client_of_ours_trusts_what_the_system_trusts() {
    if let Ok(port) = std::env::var(ASKED_PORT) {
        assert!(Connection::new("p", this_machine("http", &port), ApiKey::from(KEY), None).is_ok());
        let connection = Connection::new("p", this_machine("https", &port), ApiKey::from(KEY), None).unwrap();
        assert_eq!(connection.post("/v1", "{}".to_owned()).await.as_deref(), Ok("{}"));
        return;
    }
    let another = include_str!("localhost/another.pem");
    for (trusted, refusal) in [(CERTIFICATE, None), (another, Some("certificate")), ("", Some("Client {"))] {
        let folder = tempfile::tempdir().unwrap();
        let roots = folder.path().join("roots.pem");
        std::fs::write(&roots, trusted).unwrap();
        let (port, serving) = tls_server();
        let asked = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "model::provider::tests::a_client_of_ours_trusts_what_the_system_trusts"])
            .env(ASKED_PORT, port.to_string())
            .env("SSL_CERT_FILE", &roots)
            .env_remove("SSL_CERT_DIR")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&asked.stdout);
        assert!(told.contains("running 1 test"), "{told}");
        assert_eq!(asked.status.success(), refusal.is_none(), "{told}");
        assert!(told.contains(refusal.unwrap_or_default()), "{told}");
        // One that asked nobody leaves the server waiting.
        drop(std::net::TcpStream::connect(("127.0.0.1", port)));
        assert_eq!(serving.join().unwrap().is_some(), refusal.is_none());
    }
}

fn this_machine(scheme: &str, port: &str) -> Endpoint {
    Endpoint::check("p", &format!("{scheme}://localhost:{port}"), true).unwrap()
}

/// A resolver that sends every name elsewhere.
struct Elsewhere(Vec<&'static str>);

impl Lookup for Elsewhere {
    fn lookup(&self, _: String) -> Found {
        let found = self.0.iter().map(|address| address.parse().unwrap()).collect();
        Box::pin(async move { Ok(found) })
    }
}

/// A resolver that finds no host and says so in the system's words.
struct Nowhere(&'static str);

impl Lookup for Nowhere {
    fn lookup(&self, _: String) -> Found {
        let why = std::io::Error::other(format!("failed to lookup address information: {}", self.0));
        Box::pin(async { Err(why) })
    }
}

async fn post_as_resolved(lookup: impl Lookup, port: u16) -> Result<String, ModelError> {
    let endpoint = Endpoint::check("p", &format!("http://localhost:{port}"), true).unwrap();
    let client = own_client(&endpoint, &ApiKey::from(KEY), lookup).unwrap();
    let key = ApiKey::from(KEY);
    Connection::new("p", endpoint, key, Some(client)).unwrap().post("/v1", "{}".to_owned()).await
}

#[tokio::test]
async fn a_key_over_plain_http_stays_on_this_machine_whatever_localhost_resolves_to() {
    let fake = Fake::start([Act::ok("{}")]).await;
    let port = fake.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let (class, text) =
        why(post_as_resolved(Elsewhere(vec!["192.0.2.7:0", "[2001:db8::1]:0"]), port).await.unwrap_err());
    assert_eq!(class, "permanent");
    assert!(text.contains("localhost resolves to no loopback address"), "{text}");
    assert!(fake.asked().is_empty());
    // Of several addresses only those of this machine are dialled.
    assert_eq!(post_as_resolved(Elsewhere(vec!["192.0.2.7:0", "127.0.0.1:0"]), port).await.unwrap(), "{}");
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_incurable_and_a_resolver_that_fails_may_pass() {
    for (says, expected) in
        [("Name or service not known", "permanent"), ("Temporary failure in name resolution", "transient")]
    {
        let (class, text) = why(post_as_resolved(Nowhere(says), 1).await.unwrap_err());
        assert_eq!(class, expected, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn only_localhost_and_written_out_loopback_addresses_are_this_machine() {
    for host in ["localhost", "127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
        assert!(is_loopback(host), "{host}");
    }
    for host in [
        "LOCALHOST",
        "localhost.",
        "foo.localhost",
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0.0.0.0",
        "127.0.0.1.nip.io",
        "evil.example",
        "",
        "fe80::1%lo0",
        "::1%lo0",
        "::",
    ] {
        assert!(!is_loopback(host), "{host}");
    }
}

#[test]
fn a_key_goes_over_plain_http_to_this_machine_alone() {
    let check = |base: &str, has_key| Endpoint::check("p", base, has_key);
    for (base, has_key) in [
        ("https://api.example.com/", true),
        ("HTTPS://api.example.com/v1", true),
        ("http://127.0.0.1:8080/v1", true),
        ("http://localhost/v1", true),
        ("http://[::1]:8080/v1", true),
        ("http://gateway.example.net/", false),
    ] {
        assert!(check(base, has_key).is_ok(), "{base}");
    }
    for base in [
        "http://gateway.example.net/",
        "HTTP://evil.example/v1",
        "http://LOCALHOST/v1",
        "http://127.0.0.1.nip.io/v1",
        "http://127.1/v1",
        "http://2130706433:80/v1",
        "http://[::2]/v1",
    ] {
        let error = check(base, true).unwrap_err();
        assert!(matches!(error, ConfigError::KeyInTheClear { .. }), "{base}: {error}");
        assert!(check(base, false).is_ok(), "{base} without a key");
    }
    let inside = check("http://evil.example:pass@127.0.0.1/v1", false).unwrap_err();
    assert_eq!(inside, ConfigError::UserInformation { provider: "p", host: "127.0.0.1".to_owned() });
    assert!(!inside.to_string().contains("pass"), "{inside}");
    for base in [
        "",
        "api.example.com",
        "ftp://127.0.0.1/",
        "https:///v1",
        "https://",
        "http://:80/v1",
        "https://a b/",
        "https://a\nb/",
        "https://evil.example\\@127.0.0.1/",
        "https://api.example/v1?key=1",
        "https://api.example/#v1",
        "https://[::1/v1",
        "https://api.example:99999/",
    ] {
        let error = check(base, false).unwrap_err();
        assert!(matches!(error, ConfigError::Address { .. }), "{base:?}: {error}");
    }
}

#[test]
fn a_key_is_never_shown() {
    let key = ApiKey::from(KEY);
    let shown = [
        format!("{key}"),
        format!("{key:?}"),
        format!("{key:#?}"),
        serde_json::to_string(&key).unwrap(),
        format!("{:?}", key.header("p", "Bearer ").unwrap()),
        format!("{:?}", connection("http://127.0.0.1:1", KEY)),
    ];
    for text in &shown {
        assert!(!text.contains(KEY), "{text}");
    }
    assert_eq!(shown[..4], ["[redacted]", "[redacted]", "[redacted]", "\"[redacted]\""]);
    let none = ApiKey::default();
    assert_eq!(format!("{none} {none:?} {}", serde_json::to_string(&none).unwrap()), "\"\" \"\" \"\"");
    let unusable = ApiKey::from("two\nlines").header("p", "").unwrap_err();
    assert_eq!(unusable, ConfigError::UnusableKey { provider: "p" });
    assert!(!unusable.to_string().contains("two"));
}

#[tokio::test]
async fn a_key_that_a_server_repeats_reaches_no_error() {
    let fake = Fake::start([Act::status(401, &format!("unknown key {KEY}!"))]).await;
    assert_eq!(
        post(&fake.url()).await,
        Err(ModelError::Permanent { why: "p: 401: unknown key [redacted]!".to_owned() })
    );
}

#[test]
fn a_count_is_a_whole_number_that_fits() {
    for (text, count) in [("", 0), ("null", 0), ("0", 0), ("17", 17), (" 9223372036854775807 ", i64::MAX)] {
        assert_eq!(usage_count("input_tokens", Some(text)), Ok(count), "{text:?}");
    }
    assert_eq!(usage_count("input_tokens", None), Ok(0));
    for text in ["-1", "9223372036854775808", "1e3", "1.5", "\"12\"", "true", "{}", "+1"] {
        let error = usage_count("input_tokens", Some(text)).unwrap_err();
        assert_eq!(error.to_string(), format!("unusable usage: input_tokens is {text}, not a count"));
    }
    let long = usage_count("n", Some(&"9".repeat(100))).unwrap_err();
    assert_eq!(long.0, format!("n is {}…, not a count", "9".repeat(64)));
}

#[test]
fn a_usage_with_less_than_nothing_or_a_cache_that_gave_more_is_not_believed() {
    let usage = Usage { input_tokens: 10, output_tokens: 1, cached_input_tokens: 10 };
    assert_eq!(usage_of(10, 1, 10), Ok(usage));
    for (input, output, cached) in [(-1, 0, 0), (0, -1, 0), (1, 0, -1), (1, 0, 2)] {
        assert!(usage_of(input, output, cached).is_err(), "{input} {output} {cached}");
    }
}

#[test]
fn made_up_ids_differ_within_an_answer() {
    let ids: Vec<String> = (0..3).map(synthesize_tool_use_id).collect();
    for (index, id) in ids.iter().enumerate() {
        let middle =
            id.strip_prefix("call_").and_then(|rest| rest.strip_suffix(&format!("_{index}"))).unwrap();
        assert!(middle.parse::<i64>().unwrap() > 0, "{id}");
    }
}

#[test]
fn an_excerpt_keeps_whole_characters() {
    assert_eq!(excerpt("héllo", 2), "h…");
    assert_eq!(excerpt("short", 10), "short");
}
