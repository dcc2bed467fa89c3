//! The collector's other end: unary calls of gRPC over HTTP/2 without TLS.

use std::net::SocketAddr;
use std::sync::mpsc;

use h2::{RecvStream, server};
use opentelemetry_http::{Bytes, Request, Response};
use tokio::net::TcpListener;

use super::{Received, Requests};

/// A message's prefix: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A collector that speaks gRPC, for as long as the test lasts.
pub(crate) struct Grpc {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Requests,
    _threads: tokio::runtime::Runtime,
}

impl Grpc {
    pub(crate) fn start() -> Grpc {
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = threads.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (send, requests) = mpsc::channel();
        threads.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let send = send.clone();
                tokio::spawn(async move {
                    let mut connection = server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(answer(request, respond, send.clone()));
                    }
                });
            }
        });
        Grpc { address, requests: Requests(requests), _threads: threads }
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: server::SendResponse<Bytes>,
    send: mpsc::Sender<Received>,
) {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(Ok(chunk)) = stream.data().await {
        stream.flow_control().release_capacity(chunk.len()).unwrap();
        body.extend_from_slice(&chunk);
    }
    let headers = head.headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let received = Received {
        path: head.uri.path().to_owned(),
        headers: headers.collect(),
        body: body.split_off(PREFIX),
    };
    // A test that is over listens no more.
    drop(send.send(received));
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let mut stream = respond.send_response(response, false).unwrap();
    // An answer without fields is an answer of no bytes.
    stream.send_data(Bytes::from_static(&[0; PREFIX]), false).unwrap();
    let mut trailers = Response::new(()).into_parts().0.headers;
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}
