//! Limits on what clients hold at once, in shares: bytes unread, calls, large and slow requests.
//!
//! The same rules as in shares.py, large_requests.py and grpcio_uploads.py.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A budget of which no connection and no address can take more than its share.
pub struct Budget {
    total: u64,
    per_address: u64,
    per_connection: u64,
    pub held: u64,
    by_connection: HashMap<u64, u64>,
    by_address: HashMap<IpAddr, u64>,
}

/// Holder of bytes: a connection and its address.
#[derive(Clone, Copy)]
pub struct Holder {
    pub connection: u64,
    pub address: IpAddr,
}

impl Budget {
    pub fn new(total: u64, per_address: u64, per_connection: u64) -> Self {
        Self {
            total,
            per_address,
            per_connection,
            held: 0,
            by_connection: HashMap::new(),
            by_address: HashMap::new(),
        }
    }

    /// Whether a connection may take more; what it takes may exceed its share once.
    pub fn has_room(&self, who: Holder) -> bool {
        self.held < self.total
            && self.connection_has_room(who)
            && self.by_address.get(&who.address).copied().unwrap_or(0) < self.per_address
    }

    pub fn connection_has_room(&self, who: Holder) -> bool {
        self.held == 0
            || self.by_connection.get(&who.connection).copied().unwrap_or(0) < self.per_connection
    }

    /// Whether a connection that holds nothing may take, whatever its address holds.
    pub fn has_room_for_first(&self, who: Holder) -> bool {
        self.held < self.total && !self.by_connection.contains_key(&who.connection)
    }

    pub fn take(&mut self, who: Holder, amount: u64) {
        self.held += amount;
        *self.by_connection.entry(who.connection).or_default() += amount;
        *self.by_address.entry(who.address).or_default() += amount;
    }

    pub fn give_back(&mut self, who: Holder, amount: u64) {
        self.held -= amount;
        take_from(&mut self.by_connection, who.connection, amount);
        take_from(&mut self.by_address, who.address, amount);
    }
}

fn take_from<K: std::hash::Hash + Eq>(held: &mut HashMap<K, u64>, key: K, amount: u64) {
    if let Some(left) = held.get_mut(&key) {
        *left = left.saturating_sub(amount);
        if *left == 0 {
            held.remove(&key);
        }
    }
}

/// Bytes of large requests that are received or not yet answered; others wait.
///
/// Connections take turns: a connection with many large requests does not delay the others.
/// Requests that wait have the number of their turn; each connection has one request in a turn.
/// Invariant: who waits fits in as soon as nobody holds anything, whatever its size.
pub struct LargeRequests {
    limit: u64,
    next: u64,
    /// The turn of the request that was let in last.
    turn: u64,
    pub held_bytes: u64,
    held: HashMap<Ticket, u64>,
    waiting: BTreeMap<Ticket, Waiting>,
    /// By connection, how many of its requests wait, and the turn of the last one.
    last_turns: HashMap<u64, (u64, u64)>,
    /// Since when somebody waits.
    pub contended_since: Option<Instant>,
}

/// A large request: its turn when it began, and its number among all.
pub type Ticket = (u64, u64);

struct Waiting {
    connection: u64,
    size: u64,
    granted: oneshot::Sender<()>,
}

impl LargeRequests {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            next: 0,
            turn: 0,
            held_bytes: 0,
            held: HashMap::new(),
            waiting: BTreeMap::new(),
            last_turns: HashMap::new(),
            contended_since: None,
        }
    }

    pub fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Return a ticket, and what to wait for if there is no room now.
    pub fn ask(&mut self, connection: u64, size: u64) -> (Ticket, Option<oneshot::Receiver<()>>) {
        let number = self.next;
        self.next += 1;
        if self.waiting.is_empty() && self.fits(size) {
            let ticket = (self.turn, number);
            self.hold(ticket, size);
            return (ticket, None);
        }
        let (count, last) = self.last_turns.entry(connection).or_insert((0, self.turn));
        *count += 1;
        *last += 1;
        let ticket = (*last, number);
        let (granted, grant) = oneshot::channel();
        self.waiting.insert(ticket, Waiting { connection, size, granted });
        self.contended_since.get_or_insert_with(Instant::now);
        (ticket, Some(grant))
    }

    /// A request was answered, or given up.
    pub fn end(&mut self, ticket: Ticket) {
        self.take_waiting(ticket);
        self.held_bytes -= self.held.remove(&ticket).unwrap_or(0);
        while let Some((&first, waiting)) = self.waiting.first_key_value() {
            let size = waiting.size;
            if !self.fits(size) {
                break;
            }
            if let Some(granted) = self.take_waiting(first) {
                self.turn = first.0;
                self.hold(first, size);
                // A receiver that has gone ends its ticket itself.
                let _ = granted.send(());
            }
        }
        if self.waiting.is_empty() {
            self.contended_since = None;
        }
    }

    /// Take a request out of those that wait, if it is among them.
    fn take_waiting(&mut self, ticket: Ticket) -> Option<oneshot::Sender<()>> {
        let waiting = self.waiting.remove(&ticket)?;
        if let Some((count, _)) = self.last_turns.get_mut(&waiting.connection) {
            *count -= 1;
            if *count == 0 {
                self.last_turns.remove(&waiting.connection);
            }
        }
        Some(waiting.granted)
    }

    fn fits(&self, size: u64) -> bool {
        self.held.is_empty() || self.held_bytes + size <= self.limit
    }

    fn hold(&mut self, ticket: Ticket, size: u64) {
        self.held.insert(ticket, size);
        self.held_bytes += size;
    }
}

/// Requests that have begun and not ended, in the order of their beginning.
pub struct Uploads {
    next: u64,
    pending: BTreeMap<u64, Upload>,
    pub sweeping: bool,
}

struct Upload {
    began: Instant,
    address: IpAddr,
    expel: Option<oneshot::Sender<String>>,
}

impl Uploads {
    pub fn new() -> Self {
        Self { next: 0, pending: BTreeMap::new(), sweeping: false }
    }

    pub fn begin(&mut self, address: IpAddr) -> (u64, oneshot::Receiver<String>) {
        let (expel, expelled) = oneshot::channel();
        let key = self.next;
        self.next += 1;
        self.pending.insert(key, Upload { began: Instant::now(), address, expel: Some(expel) });
        (key, expelled)
    }

    pub fn end(&mut self, key: u64) {
        self.pending.remove(&key);
    }

    /// Look at those that have been here for long, the oldest first; return whether any are left.
    pub fn sweep(&mut self, slow: Duration, max: Duration, total: u64, share: u64) -> bool {
        let now = Instant::now();
        let mut of_address: HashMap<IpAddr, u64> = HashMap::new();
        for (number, upload) in self.pending.values_mut().enumerate() {
            let age = now.saturating_duration_since(upload.began);
            if age < slow {
                break;
            }
            let share_taken = of_address.entry(upload.address).or_default();
            *share_taken += 1;
            let reason = if age >= max {
                format!("the request did not arrive within {} s", max.as_secs_f64())
            } else if number as u64 >= total || *share_taken > share {
                "too many unfinished requests".to_owned()
            } else {
                continue;
            };
            if let Some(expel) = upload.expel.take() {
                let _ = expel.send(reason);
            }
        }
        !self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns() {
        let mut large = LargeRequests::new(10);
        let (mut last, _) = large.ask(1, 10);
        let mut waiting: Vec<_> = [1, 1, 1, 2, 2, 3].map(|who| (who, large.ask(who, 10))).into();
        assert_eq!(large.waiting(), 6);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            large.end(last);
            let let_in = waiting
                .iter_mut()
                .position(|(_, (_, grant))| {
                    grant.as_mut().is_some_and(|one| one.try_recv().is_ok())
                })
                .expect("one is let in");
            let (who, (ticket, _)) = waiting.remove(let_in);
            order.push(who);
            last = ticket;
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        large.end(last);
        assert_eq!((large.held_bytes, large.waiting(), large.last_turns.len()), (0, 0, 0));
    }

    #[test]
    fn who_gives_up_leaves_nothing() {
        let mut large = LargeRequests::new(10);
        let (held, _) = large.ask(1, 10);
        let (given_up, _grant) = large.ask(2, 10);
        large.end(given_up);
        assert_eq!((large.waiting(), large.last_turns.len()), (0, 0));
        large.end(held);
        assert_eq!(large.held_bytes, 0);
    }
}
