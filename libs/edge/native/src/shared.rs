//! State that the event loop's thread and the I/O thread share: two queues, counters, certificate.
//!
//! The I/O thread puts events and makes the eventfd readable; Python puts commands and wakes the
//! I/O thread. Neither waits for the other, and the I/O thread never takes the GIL.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::facts::CallFacts;
use crate::locks::lock;

/// News from the I/O thread for Python, in order.
pub enum Event {
    Hot {
        id: u64,
        method: u8,
        request: Vec<Bytes>,
        facts: CallFacts,
    },
    Rare {
        id: u64,
        route: u32,
        request: Option<Vec<Bytes>>,
        facts: CallFacts,
    },
    /// The next message of a talk.
    Message {
        id: u64,
        message: Vec<Bytes>,
    },
    /// The client of a talk sends no more.
    HalfClosed {
        id: u64,
    },
    /// The call has ended without Python's doing.
    Gone {
        id: u64,
    },
    Taken {
        id: u64,
    },
    NotTaken {
        id: u64,
    },
    /// The clients that `Order::SendAway` chose.
    SentAway {
        peers: Vec<String>,
    },
    /// A connection of another protocol: its socket, or one end of a relay behind TLS.
    HandedOver {
        descriptor: OwnedFd,
        peer: String,
        is_secured: bool,
    },
}

/// Order of Python to the I/O thread about one call.
pub enum Command {
    /// All responses, then the end. `notify`: say whether the transport took them.
    Answer {
        frames: Vec<Bytes>,
        size: u64,
        notify: bool,
    },
    /// Some responses of a stream.
    Send {
        frames: Vec<Bytes>,
        size: u64,
    },
    Finish,
    Fail {
        code: u8,
        reason: String,
    },
    /// The next message of a talk is wanted.
    Next,
}

pub enum Order {
    Call(u64, Command),
    /// Take no new connection and send clients away.
    Drain,
    /// Ask at most so many clients to make their next calls over another connection.
    SendAway(usize),
    /// End everything.
    Stop,
}

macro_rules! numbers {
    ($($name:ident),*) => {
        #[derive(Clone, Copy)]
        #[allow(clippy::upper_case_acronyms)]
        pub enum Number { $($name),* }
        /// In the order of `Number`; Python finds the numbers by these names.
        pub const NUMBERS: &[&str] = &[$(stringify!($name)),*];
    };
}

numbers!(
    RefusedCalls,
    RefusedUnread,
    RefusedSize,
    RefusedUpload,
    NotTaken,
    RefusedConnections,
    TlsFailures,
    HandshakeTimeouts,
    PlaintextRefused,
    Pauses,
    Ended,
    SentAway,
    HandedOver,
    Panics,
    HotCalls,
    RareCalls,
    UnreadBytes,
    Connections,
    Leaving,
    Relayed,
    LargeBytes,
    LargeWaiting
);

pub struct Shared {
    events: Mutex<Vec<Event>>,
    orders: Mutex<Vec<Order>>,
    pub ordered: Notify,
    signalled: AtomicBool,
    panic_once: AtomicBool,
    eventfd: OwnedFd,
    numbers: Vec<AtomicU64>,
    /// Connections that wait for Python to take them over.
    handed_over: AtomicU64,
    pub tls: Mutex<Option<Arc<rustls::ServerConfig>>>,
}

impl Shared {
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: eventfd has no preconditions; the descriptor is checked and owned at once.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            events: Mutex::default(),
            orders: Mutex::default(),
            ordered: Notify::new(),
            signalled: AtomicBool::new(false),
            panic_once: AtomicBool::new(false),
            // SAFETY: nobody else has the descriptor.
            eventfd: unsafe { OwnedFd::from_raw_fd(fd) },
            numbers: NUMBERS.iter().map(|_| AtomicU64::new(0)).collect(),
            handed_over: AtomicU64::new(0),
            tls: Mutex::default(),
        })
    }

    pub fn descriptor(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    pub fn put(&self, event: Event) {
        lock(&self.events).push(event);
    }

    /// Make the eventfd readable, once until the next `take_events`.
    pub fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes of a live buffer, to a descriptor that lives as long as self.
            unsafe { libc::write(self.descriptor(), one.as_ptr().cast(), one.len()) };
        }
    }

    pub fn take_events(&self) -> Vec<Event> {
        let mut count = [0u8; 8];
        // SAFETY: as in `signal`.
        unsafe { libc::read(self.descriptor(), count.as_mut_ptr().cast(), count.len()) };
        self.signalled.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.events))
    }

    pub fn order(&self, orders: &mut Vec<Order>) {
        lock(&self.orders).append(orders);
        self.ordered.notify_one();
    }

    pub fn take_orders(&self) -> Vec<Order> {
        std::mem::take(&mut lock(&self.orders))
    }

    /// The next call panics. No order: an order may be taken after a call that came later.
    pub fn order_panic(&self) {
        self.panic_once.store(true, Ordering::Release);
    }

    pub fn takes_panic(&self) -> bool {
        self.panic_once.load(Ordering::Relaxed) && self.panic_once.swap(false, Ordering::AcqRel)
    }

    /// Give Python a connection of another protocol.
    pub fn hand_over(&self, descriptor: OwnedFd, peer: String, is_secured: bool) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        self.put(Event::HandedOver { descriptor, peer, is_secured });
        self.add(Number::HandedOver, 1);
    }

    pub fn taken_over(&self) {
        self.handed_over.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn waiting_for_python(&self) -> u64 {
        self.handed_over.load(Ordering::Relaxed)
    }

    pub fn add(&self, number: Number, amount: u64) {
        self.numbers[number as usize].fetch_add(amount, Ordering::Relaxed);
    }

    pub fn set(&self, number: Number, value: u64) {
        self.numbers[number as usize].store(value, Ordering::Relaxed);
    }

    pub fn all_numbers(&self) -> Vec<u64> {
        self.numbers.iter().map(|number| number.load(Ordering::Relaxed)).collect()
    }
}
