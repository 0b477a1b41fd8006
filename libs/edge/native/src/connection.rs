//! One connection: its first byte, TLS, HTTP/2, and a task for each of its calls.

use std::future::{poll_fn, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::Request;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use crate::calls;
use crate::edge::{Connection, Edge, Stage};
use crate::guarded::{Guarded, Stream};
use crate::handover::{self, begins_other, Handed};
use crate::locks::lock;
use crate::messages::Answer;
use crate::outcomes::{End, INTERNAL, MISTAKE};
use crate::shared::Number;

pub const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const DRAIN_HANDSHAKE: Duration = Duration::from_secs(1);
const TLS_HANDSHAKE: u8 = 0x16;
const LATE_DATA: Duration = Duration::from_secs(30);
const MAX_RESETS: usize = 16_384; // by the server, while a connection lives
const WINDOW_SLACK: u32 = 16 << 10;

/// Serve a connection to its end.
pub async fn serve(edge: Rc<Edge>, connection: Rc<Connection>, tcp: TcpStream) {
    let _ = tcp.set_nodelay(true);
    let begun = tokio::select! {
        begun = tokio::time::timeout(edge.options.handshake_timeout, begin(&edge, &connection, tcp)) => begun,
        () = connection.end.notified() => return,
        // A client that is about to speak gets the time for it.
        () = given_up(&edge, &connection) => return,
    };
    let Ok(begun) = begun else {
        edge.shared.add(Number::HandshakeTimeouts, 1);
        edge.wake_python();
        return;
    };
    let mut http2 = match begun {
        Some(Begun::Http2(http2)) => http2,
        Some(Begun::Other(handed)) => return handover::serve(&edge, &connection, handed).await,
        None => return,
    };
    connection.stage.set(Stage::Serving);
    let mut sent_away = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = connection.end.notified() => return,
            () = connection.send_away.notified(), if !sent_away => {
                sent_away = true;
                http2.graceful_shutdown();
                continue;
            }
            accepted = http2.accept() => accepted,
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let stream = u32::from(respond.stream_id());
                let (edge, connection) = (edge.clone(), connection.clone());
                let request = Box::new(request);
                spawn_local(async move {
                    serve_call(&edge, &connection, request, respond).await;
                    connection.frames.borrow_mut().forget(stream);
                });
            }
            Some(Err(error)) => {
                if error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM) {
                    edge.shared.add(Number::Ended, 1);
                    edge.wake_python();
                }
                return;
            }
            None => return,
        }
    }
}

/// When a server drains, nobody waits long for who says nothing.
async fn given_up(edge: &Edge, connection: &Connection) {
    connection.send_away.notified().await;
    // The order stands for whoever serves the connection.
    connection.send_away.notify_one();
    let _ = edge;
    tokio::time::sleep(DRAIN_HANDSHAKE).await;
}

type Http2 = h2::server::Connection<Guarded, Bytes>;

enum Begun {
    Http2(Box<Http2>),
    Other(Handed),
}

/// Take the first byte, which says whether TLS or another protocol comes, and the handshakes.
async fn begin(edge: &Edge, connection: &Connection, tcp: TcpStream) -> Option<Begun> {
    let mut first = [0u8; 1];
    if tcp.peek(&mut first).await.ok()? == 0 {
        return None;
    }
    let options = &edge.options;
    let stream = if first[0] == TLS_HANDSHAKE && options.tls {
        let config = lock(&edge.shared.tls).clone()?;
        let Ok(mut tls) = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await else {
            edge.shared.add(Number::TlsFailures, 1);
            edge.wake_python();
            return None;
        };
        let mut begun = None;
        if options.hands_over && tls.get_ref().1.alpn_protocol().is_none() {
            let first = tls.read_u8().await.ok()?;
            if begins_other(first) {
                return Some(Begun::Other(Handed::Tls(Box::new(tls), first)));
            }
            begun = Some(first);
        }
        (Stream::Tls(Box::new(tls)), begun)
    } else if options.tls_only {
        edge.shared.add(Number::PlaintextRefused, 1);
        edge.wake_python();
        return None;
    } else if options.hands_over && begins_other(first[0]) {
        return Some(Begun::Other(Handed::Plain(tcp)));
    } else {
        (Stream::Plain(tcp), None)
    };
    let debt = edge.debt_of(connection.holder.address);
    let frames = connection.frames.clone();
    let guarded = Guarded::new(stream, frames, options.guard.clone(), debt, edge.shared.clone());
    // A request that is not large fits in the window of its stream; those of all streams fit in
    // the connection's, so that none that waits for room delays another.
    let window = (options.guard.large_request_bytes as u32).saturating_add(WINDOW_SLACK);
    let all = u64::from(window) * u64::from(options.max_streams_per_connection);
    let resets = options.guard.resets_at_once as usize;
    let streams = options.max_streams_per_connection;
    h2::server::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(all.min((1 << 31) - 1) as u32)
        .max_concurrent_streams(streams)
        // A larger block is refused with a status of HTTP, so the call's own limit comes first.
        .max_header_list_size(options.guard.max_header_bytes as u32)
        .max_send_buffer_size(options.send_buffer_bytes as usize)
        .max_pending_accept_reset_streams(resets)
        // Late data of as many streams as there may be is no error, and all that a client is
        // refused before it has heard of the limit is within this one. Its debt is counted as
        // frames go out (guarded.rs); this bounds the data that waits for a client that does not read.
        .max_concurrent_reset_streams(streams as usize)
        .reset_stream_duration(LATE_DATA)
        .max_local_error_reset_streams(Some(resets.max(MAX_RESETS)))
        .handshake(guarded)
        .await
        .ok()
        .map(|http2| Begun::Http2(Box::new(http2)))
}

/// Serve a call; a panic ends it with INTERNAL and goes no further.
async fn serve_call(
    edge: &Rc<Edge>,
    connection: &Rc<Connection>,
    request: Box<Request<RecvStream>>,
    respond: SendResponse<Bytes>,
) {
    let mut answer = Answer::new(respond);
    let outcome = {
        let mut call = pin!(calls::serve(edge, connection, request, &mut answer));
        let turn = |cx: &mut std::task::Context<'_>| call.as_mut().poll(cx);
        let mut turn = AssertUnwindSafe(turn);
        poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| (turn.0)(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outcome)) => Poll::Ready(Some(outcome)),
            Err(_) => Poll::Ready(None),
        })
        .await
    };
    match outcome {
        Some(Ok(()) | Err(End::Gone)) => {}
        Some(Err(End::Status(code, reason))) => answer.end(code, &reason),
        None => {
            edge.shared.add(Number::Panics, 1);
            edge.wake_python();
            answer.end(INTERNAL, MISTAKE);
        }
    }
}
