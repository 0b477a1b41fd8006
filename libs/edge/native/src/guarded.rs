//! A connection that is not read while its client owes time for frames that are no requests.
//!
//! The same rules as in connection_guard.py: a connection may be in debt for a while; then it is
//! not read until the debt is paid. Its address pays, too. In addition, a connection that goes on
//! to flood after it was paused for as long as the longest pause is ended.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use crate::frames::{ClientFrames, ServerFrames};
use crate::options::Guard;
use crate::shared::{Number, Shared};

const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Seconds that somebody has yet to pay, by waiting.
#[derive(Default)]
pub struct Debt {
    due: Cell<Option<Instant>>,
}

impl Debt {
    pub fn left_s(&self) -> f64 {
        let due = self.due.get();
        due.map_or(0.0, |due| due.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    fn add(&self, cost_s: f64) {
        let now = Instant::now();
        let from = self.due.get().map_or(now, |due| due.max(now));
        self.due.set(Some(from + Duration::from_secs_f64(cost_s)));
    }
}

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
        }
    }
}

/// See the module's description.
pub struct Guarded {
    stream: Stream,
    frames: Rc<RefCell<ClientFrames>>,
    sent: ServerFrames,
    limits: Guard,
    own: Debt,
    address: Rc<Debt>,
    shared: Arc<Shared>,
    paused_until: Option<Instant>,
    pause: Option<Pin<Box<Sleep>>>,
    /// Time that it was not read for its own debt, since it last had none.
    paused_s: f64,
    /// A byte that was read to see which protocol it begins.
    first: Option<u8>,
}

impl Guarded {
    pub fn new(
        (stream, first): (Stream, Option<u8>),
        frames: Rc<RefCell<ClientFrames>>,
        limits: Guard,
        address: Rc<Debt>,
        shared: Arc<Shared>,
    ) -> Self {
        let own = Debt::default();
        let sent = ServerFrames::default();
        Self {
            stream,
            frames,
            sent,
            limits,
            own,
            address,
            shared,
            paused_until: None,
            pause: None,
            paused_s: 0.0,
            first,
        }
    }

    /// Wait for the end of a pause; who leaves in debt need not be read to the end.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(until) = self.paused_until {
            let now = Instant::now();
            if now >= until {
                self.paused_until = None;
                self.pause = None;
                break;
            }
            let mut seen = Box::pin(self.stream.tcp().ready(Interest::READABLE));
            if let Poll::Ready(Ok(ready)) = seen.as_mut().poll(cx) {
                if ready.is_read_closed() {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
            }
            let wait = (until - now).min(LOOK_INTERVAL);
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Follow what was written of some data: a reset that a client brings about costs as its own.
    fn follow_sent(&mut self, data: &[u8]) {
        let resets = self.sent.resets_in(data);
        if resets > 0 {
            self.frames.borrow_mut().cost_s += f64::from(resets) * self.limits.reset_cost_s;
        }
    }

    fn follow(&mut self, data: &[u8]) -> io::Result<()> {
        let mut frames = self.frames.borrow_mut();
        frames.pass_over(data);
        if frames.fault.is_some() {
            self.shared.add(Number::Ended, 1);
            self.shared.signal();
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let cost_s = std::mem::take(&mut frames.cost_s);
        if cost_s == 0.0 {
            return Ok(());
        }
        let limits = &self.limits;
        if self.own.left_s() == 0.0 {
            self.paused_s = 0.0;
        }
        self.own.add(cost_s);
        self.address.add(cost_s / limits.control_connections_per_address);
        let mut wait_s = self.own.left_s() - limits.control_credit_s;
        if wait_s > 0.0 {
            // A flood: a client that pauses made no slower than its rates.
            if self.paused_s >= limits.max_control_pause_s {
                self.shared.add(Number::Ended, 1);
                self.shared.signal();
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.paused_s += wait_s.min(limits.max_control_pause_s);
        }
        if self.own.left_s() > limits.control_grace_s {
            wait_s = wait_s.max(self.address.left_s() - limits.control_credit_s);
        }
        if wait_s > 0.0 {
            let wait_s = wait_s.min(limits.max_control_pause_s);
            self.paused_until = Some(Instant::now() + Duration::from_secs_f64(wait_s));
            self.shared.add(Number::Pauses, 1);
            self.shared.signal();
        }
        Ok(())
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.paused_until.is_some() {
            std::task::ready!(self.poll_pause(cx))?;
        }
        let before = buf.filled().len();
        if let Some(first) = self.first.take() {
            buf.put_slice(&[first]);
        } else {
            std::task::ready!(match &mut self.stream {
                Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
                Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
            })?;
        }
        self.follow(&buf.filled()[before..])?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, data),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, data),
        })?;
        self.follow_sent(&data[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, data),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, data),
        })?;
        let mut left = written;
        for piece in data {
            let here = left.min(piece.len());
            self.follow_sent(&piece[..here]);
            left -= here;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(tcp) => tcp.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
