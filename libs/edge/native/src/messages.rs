//! gRPC messages of one stream, in and out, and the text forms of gRPC's headers.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{HeaderName, HeaderValue, CONTENT_TYPE};
use http::{HeaderMap, Response};
use tokio::sync::oneshot;

use crate::edge::{Connection, Edge};
use crate::large::Ticket;
use crate::outcomes::{End, Outcome, INTERNAL, UNIMPLEMENTED};
use crate::pace::{self, Awaited};
use crate::shared::Number;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ACCEPTS: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const PREFIX_BYTES: usize = 5;
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400 * 365);

/// The requests of a stream, message by message.
pub struct Messages {
    edge: Rc<Edge>,
    connection: Rc<Connection>,
    body: RecvStream,
    chunks: Vec<Bytes>,
    have: usize,
    /// Taken from the window and not given back, while a large request waits for room.
    owed: usize,
    ticket: Option<Ticket>,
}

impl Messages {
    pub fn new(edge: Rc<Edge>, connection: Rc<Connection>, body: RecvStream) -> Self {
        Self { edge, connection, body, chunks: Vec::new(), have: 0, owed: 0, ticket: None }
    }

    /// Return the next message in pieces; None: there is no other.
    pub async fn next(&mut self, max_bytes: u64) -> Outcome<Option<Vec<Bytes>>> {
        self.end_ticket();
        while self.have < PREFIX_BYTES {
            if !self.more(true).await? {
                return Ok(None);
            }
        }
        let prefix = self.take(PREFIX_BYTES);
        let mut head = [0u8; PREFIX_BYTES];
        let mut at = 0;
        for piece in &prefix {
            head[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        if head[0] != 0 {
            let reason = "requests are not compressed here".to_owned();
            return Err(End::Status(UNIMPLEMENTED, reason));
        }
        let size = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if size as u64 > max_bytes {
            let reason = format!("the request has {size} bytes, the limit is {max_bytes}");
            return Err(self.edge.refuse(Number::RefusedSize, &reason));
        }
        if size as u64 > self.edge.options.guard.large_request_bytes {
            self.collect_large(size).await?;
        }
        while self.have < size {
            if !self.more(true).await? {
                return Err(End::Status(
                    INTERNAL,
                    "the request ended before its length".to_owned(),
                ));
            }
        }
        Ok(Some(self.take(size)))
    }

    /// Receive a large message: first of all there must be room for it.
    async fn collect_large(&mut self, size: usize) -> Outcome<()> {
        let who = self.connection.holder;
        let (ticket, grant) = self.edge.large.borrow_mut().ask(who, size as u64);
        self.ticket = Some(ticket);
        self.edge.show_large();
        if let Some(grant) = grant {
            pace::watch(&self.edge);
            self.wait_for_room(grant).await?;
        }
        let _ = self.body.flow_control().release_capacity(std::mem::take(&mut self.owed));
        let connection = self.connection.clone();
        let mut awaited = Awaited::new(&connection, size.saturating_sub(self.have) as u64);
        while self.have < size {
            let before = self.have;
            if !self.more(true).await? {
                break;
            }
            awaited.come((self.have - before) as u64);
        }
        Ok(())
    }

    /// Take what the window let through already, and let the client send no more.
    async fn wait_for_room(&mut self, mut grant: oneshot::Receiver<()>) -> Outcome<()> {
        loop {
            tokio::select! {
                _ = &mut grant => break,
                more = self.more(false) => if !more? {
                    let _ = (&mut grant).await;
                    break;
                },
            }
        }
        self.edge.show_large();
        Ok(())
    }

    /// Receive a piece; false: the client has sent all.
    async fn more(&mut self, release: bool) -> Outcome<bool> {
        match self.body.data().await {
            None => Ok(false),
            Some(Err(_)) => Err(End::Gone),
            Some(Ok(piece)) => {
                if release {
                    let _ = self.body.flow_control().release_capacity(piece.len());
                } else {
                    self.owed += piece.len();
                }
                self.have += piece.len();
                if !piece.is_empty() {
                    self.chunks.push(piece);
                }
                Ok(true)
            }
        }
    }

    /// Cut off the first bytes; so many are there.
    fn take(&mut self, mut size: usize) -> Vec<Bytes> {
        self.have -= size;
        let mut taken = Vec::new();
        let mut used = 0;
        for chunk in &mut self.chunks {
            if size == 0 {
                break;
            }
            if chunk.len() <= size {
                size -= chunk.len();
                used += 1;
                taken.push(std::mem::take(chunk));
            } else {
                taken.push(chunk.split_to(size));
                size = 0;
            }
        }
        self.chunks.drain(..used);
        taken
    }

    /// A large request holds no room any more: Python has answered it, and holds it no longer.
    ///
    /// Its answer has a limit of its own: how long a client takes to read it is its own business.
    pub fn end_ticket(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.edge.large.borrow_mut().end(self.connection.holder, ticket);
            self.edge.show_large();
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.end_ticket();
        if !self.body.is_end_stream() {
            let stream = u32::from(self.body.stream_id());
            self.connection.frames.borrow_mut().leave(stream);
        }
    }
}

/// The responses of a stream and its end.
pub struct Answer {
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    ended: bool,
}

impl Answer {
    pub fn new(respond: SendResponse<Bytes>) -> Self {
        Self { respond, stream: None, ended: false }
    }

    pub fn poll_gone(&mut self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        match &mut self.stream {
            Some(stream) => stream.poll_reset(cx).map(drop),
            None => self.respond.poll_reset(cx).map(drop),
        }
    }

    fn stream(&mut self) -> Outcome<&mut SendStream<Bytes>> {
        if self.stream.is_none() {
            let mut head = Response::new(());
            head.headers_mut().insert(CONTENT_TYPE, GRPC);
            head.headers_mut().insert(ACCEPTS, HeaderValue::from_static("identity"));
            let stream = self.respond.send_response(head, false).map_err(|_| End::Gone)?;
            self.stream = Some(stream);
        }
        self.stream.as_mut().ok_or(End::Gone)
    }

    /// Send frames that are small enough to wait in this process for their client.
    pub fn send_at_once(&mut self, frames: Vec<Bytes>) -> Outcome<()> {
        let stream = self.stream()?;
        for frame in frames {
            stream.send_data(frame, false).map_err(|_| End::Gone)?;
        }
        Ok(())
    }

    /// Send frames as fast as the client reads; return when the transport has all.
    ///
    /// Args: taken: counts the bytes that it has.
    pub async fn send(&mut self, frames: Vec<Bytes>, taken: &Cell<u64>) -> Outcome<()> {
        let stream = self.stream()?;
        for mut frame in frames {
            while frame.has_remaining() {
                stream.reserve_capacity(frame.len());
                while stream.capacity() == 0 {
                    match poll_fn(|cx| stream.poll_capacity(cx)).await {
                        Some(Ok(_)) => {}
                        _ => return Err(End::Gone),
                    }
                }
                let now = stream.capacity().min(frame.len());
                stream.send_data(frame.split_to(now), false).map_err(|_| End::Gone)?;
                taken.set(taken.get() + now as u64);
            }
        }
        Ok(())
    }

    /// End the call, once.
    pub fn end(&mut self, code: u8, reason: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(STATUS, HeaderValue::from(u16::from(code)));
        if !reason.is_empty() {
            if let Ok(text) = HeaderValue::from_str(&percent_encoded(reason)) {
                trailers.insert(MESSAGE, text);
            }
        }
        // A client that has gone needs no end.
        if let Some(stream) = &mut self.stream {
            let _ = stream.send_trailers(trailers);
        } else {
            let mut head = Response::new(());
            *head.headers_mut() = trailers;
            head.headers_mut().insert(CONTENT_TYPE, GRPC);
            let _ = self.respond.send_response(head, true);
        }
    }

    /// Refuse what is no gRPC.
    pub fn end_http(&mut self, status: http::StatusCode) {
        self.ended = true;
        let mut head = Response::new(());
        *head.status_mut() = status;
        let _ = self.respond.send_response(head, true);
    }
}

/// gRPC's form of a text: what is not printable ASCII, and the percent sign, as %XX.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The client's `grpc-timeout`; what is none is as if it were not there.
pub fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit())
    {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    let time = match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        "S" => Duration::from_secs(number),
        "M" => Duration::from_secs(number * 60),
        "H" => Duration::from_secs(number * 3_600),
        _ => return None,
    };
    Some(time.min(LONGEST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        for (text, expected) in [
            ("29S", Some(Duration::from_secs(29))),
            ("300m", Some(Duration::from_millis(300))),
            ("99999999H", Some(LONGEST_TIMEOUT)),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("123456789S", None),
            ("5x", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            assert_eq!(timeout_of(&headers), expected, "{text}");
        }
    }

    #[test]
    fn texts() {
        assert_eq!(percent_encoded("50 % of é\n"), "50 %25 of %C3%A9%0A");
    }
}
