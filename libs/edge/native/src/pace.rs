//! Ends connections that hold what others wait for and do not make use of it (pace.py).

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::spawn_local;

use crate::edge::{Connection, Edge};

const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The least that is asked of a connection in a window of time.
#[derive(Clone, Copy)]
pub struct LeastRate {
    pub window: Duration,
    pub bytes_per_s: u64,
}

/// How far a connection is in its window.
pub struct Pace {
    since: Instant,
    done: u64,
    due: u64,
}

impl Pace {
    /// Args: done: bytes so far; left: bytes that are yet to come.
    fn begin(now: Instant, done: u64, left: u64) -> Self {
        Self { since: now, done, due: left }
    }

    /// Whether a window has ended with less than the rate, and less than there was to do.
    fn is_too_slow(&mut self, least: LeastRate, now: Instant, done: u64, left: u64) -> bool {
        let time = now.saturating_duration_since(self.since);
        if time < least.window {
            return false;
        }
        let least_bytes = (least.bytes_per_s as f64 * time.as_secs_f64()) as u64;
        let is_slow = done - self.done < least_bytes.min(self.due);
        *self = Self::begin(now, done, left);
        is_slow
    }
}

/// The connections that others wait for.
#[derive(Default)]
pub struct Watch {
    is_running: bool,
    uploads: HashMap<u64, Pace>,
    reads: HashMap<u64, Pace>,
}

/// Somebody waits or is refused: look at who is the cause of it until nobody does any more.
pub fn watch(edge: &Rc<Edge>) {
    if std::mem::replace(&mut edge.watch.borrow_mut().is_running, true) {
        return;
    }
    let edge = edge.clone();
    spawn_local(async move {
        while look(&edge) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    });
}

/// Return whether there is anybody to look at.
fn look(edge: &Edge) -> bool {
    let mut watch = edge.watch.borrow_mut();
    let (large, unread) = (edge.large.borrow(), edge.unread.borrow());
    let (now, options) = (Instant::now(), &edge.options);
    let connections = edge.connections.borrow();
    watch.uploads.retain(|id, _| connections.contains_key(id));
    watch.reads.retain(|id, _| connections.contains_key(id));
    for (id, connection) in connections.iter() {
        let awaited = connection.awaited.get();
        let delays = awaited > 0 && large.others_wait_for(connection.holder);
        let done = delays.then(|| (connection.received.get(), awaited));
        let is_slow = follow(&mut watch.uploads, *id, now, options.least_upload, done);
        let left = unread.held_by(*id);
        let delays = left > 0 && unread.is_used_up(connection.holder.address);
        let done = delays.then(|| (connection.taken.get(), left));
        if follow(&mut watch.reads, *id, now, options.least_read, done) || is_slow {
            connection.end_for_standstill(edge);
        }
    }
    watch.is_running = large.waiting() > 0 || !watch.reads.is_empty();
    watch.is_running
}

/// Args: progress: what was done and what is left; None: nobody waits for it.
fn follow(
    paces: &mut HashMap<u64, Pace>,
    id: u64,
    now: Instant,
    least: LeastRate,
    progress: Option<(u64, u64)>,
) -> bool {
    let Some((done, left)) = progress else {
        paces.remove(&id);
        return false;
    };
    let pace = paces.entry(id).or_insert_with(|| Pace::begin(now, done, left));
    pace.is_too_slow(least, now, done, left)
}

/// Bytes of a large request that was let in and is not here, until it is dropped.
pub struct Awaited<'a> {
    connection: &'a Connection,
    left: u64,
}

impl<'a> Awaited<'a> {
    pub fn new(connection: &'a Connection, left: u64) -> Self {
        connection.awaited.set(connection.awaited.get() + left);
        Self { connection, left }
    }

    pub fn come(&mut self, count: u64) {
        let count = count.min(self.left);
        self.left -= count;
        self.connection.awaited.set(self.connection.awaited.get() - count);
        self.connection.received.set(self.connection.received.get() + count);
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.connection.awaited.set(self.connection.awaited.get() - self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_asks_the_rate_or_all_there_was() {
        let least = LeastRate { window: Duration::from_secs(5), bytes_per_s: 10 };
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut pace = Pace::begin(begun, 100, 1_000);
        assert!(!pace.is_too_slow(least, at(4), 100, 1_000), "the window goes on");
        assert!(!pace.is_too_slow(least, at(5), 150, 950));
        assert!(pace.is_too_slow(least, at(10), 199, 20));
        assert!(!pace.is_too_slow(least, at(15), 219, 0), "it has done all there was");
    }
}
