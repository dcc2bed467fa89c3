//! TLS in front of a collector, whatever that speaks: it lets in who has this folder's certificate, and passes on what
//! they say.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// The file of this folder's certificate, or of its key.
pub(crate) fn file(name: &str) -> String {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/collector/localhost"));
    folder.join(name).into_os_string().into_string().unwrap()
}

/// An address that speaks TLS for the one behind it, for as long as the test lasts.
pub(crate) fn in_front(behind: SocketAddr) -> SocketAddr {
    let config = Arc::new(config());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            // A client that does not trust us, or whom we don't, ends its connection with an error.
            std::thread::spawn(move || pass_on(stream?, TcpStream::connect(behind)?, config));
        }
    });
    address
}

fn config() -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(file("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
    let provider = Arc::new(ring::default_provider());
    let mut known = RootCertStore::empty();
    known.add(certificate.clone()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(known), Arc::clone(&provider)).build().unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

fn pass_on(mut outside: TcpStream, mut inside: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut bytes = [0; 16 * 1024];
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut outside)?;
        }
        let mut ends = [PollFd::new(&outside, PollFlags::IN), PollFd::new(&inside, PollFlags::IN)];
        poll(&mut ends, None)?;
        let [from_outside, from_inside] = [!ends[0].revents().is_empty(), !ends[1].revents().is_empty()];
        if from_outside {
            if tls.read_tls(&mut outside)? == 0 {
                return Ok(());
            }
            let heard = tls.process_new_packets();
            if heard.is_err() {
                // The client is told why.
                tls.write_tls(&mut outside)?;
            }
            let mut left = heard.map_err(io::Error::other)?.plaintext_bytes_to_read();
            while left > 0 {
                let read = tls.reader().read(&mut bytes)?;
                inside.write_all(&bytes[..read])?;
                left -= read;
            }
        }
        if from_inside {
            match inside.read(&mut bytes)? {
                0 => {
                    tls.send_close_notify();
                    tls.write_tls(&mut outside)?;
                    return Ok(());
                }
                read => tls.writer().write_all(&bytes[..read])?,
            }
        }
    }
}
