//! A provider for tests: it listens on this machine, answers as it is told, and keeps what it was asked.
//!
//! Owns one script. Knows no provider's format, and closes the connection after each answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A key that no error and no print may show.
pub(crate) const KEY: &str = "sk-a-key-of-the-tests";

/// What it does with one request.
pub(crate) enum Act {
    /// Answers with a status, headers and a body.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Sends these bytes, whatever they are, and closes.
    Bytes(Vec<u8>),
    /// Never answers.
    Silence,
}

impl Act {
    /// A success with a body.
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Act {
        Act::Answer(200, Vec::new(), body.into())
    }

    /// Another status with a body.
    pub(crate) fn status(status: u16, body: &str) -> Act {
        Act::Answer(status, Vec::new(), body.into())
    }

    /// A success that announces a longer body than it sends.
    pub(crate) fn cut_off(body: &str) -> Act {
        let announced = body.len() + 10;
        Act::Bytes(format!("HTTP/1.1 200 OK\r\ncontent-length: {announced}\r\n\r\n{body}").into_bytes())
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Its first line.
    pub(crate) line: String,
    /// Its headers, their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    /// Its body.
    pub(crate) body: String,
}

/// The server. It ends when this is dropped.
pub(crate) struct Fake {
    /// Where it listens, as `127.0.0.1:port`.
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    serving: JoinHandle<()>,
}

impl Fake {
    /// Starts one that acts so, in this order; a request too many is answered with status 418.
    pub(crate) async fn start(script: impl IntoIterator<Item = Act>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script: Vec<Act> = script.into_iter().collect();
        let serving = tokio::spawn(serve(listener, script, Arc::clone(&asked)));
        Fake { address, asked, serving }
    }

    /// Its address with `http://`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that it was asked, in order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, script: Vec<Act>, asked: Arc<Mutex<Vec<Asked>>>) {
    let mut script = script.into_iter();
    // Held open, or what never answers would be a closed connection.
    let mut silent = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let Some(request) = read(&mut stream).await else { continue };
        asked.lock().unwrap().push(request);
        let bytes = match script.next().unwrap_or_else(|| Act::status(418, "nothing more is scripted")) {
            Act::Answer(status, headers, body) => answer(status, &headers, &body),
            Act::Bytes(bytes) => bytes,
            Act::Silence => {
                silent.push(stream);
                continue;
            }
        };
        // Who asked may have gone away in the middle of it.
        drop(stream.write_all(&bytes).await);
        drop(stream.shutdown().await);
    }
}

fn answer(status: u16, headers: &[(&'static str, String)], body: &[u8]) -> Vec<u8> {
    let mut head =
        format!("HTTP/1.1 {status} Said\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let pair =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<String, String> = lines.filter_map(pair).collect();
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { line, headers, body: String::from_utf8(body).ok()? })
}
