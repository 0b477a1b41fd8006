//! Bytes of large requests that are received or not yet answered; others wait (large_requests.py).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::budgets::{take_from, Holder};

/// Limits on what is held at once: by all, by one address, by one connection.
#[derive(Clone, Copy)]
pub struct Shares {
    pub total: u64,
    pub per_address: u64,
    pub per_connection: u64,
}

/// The number of a large request among all.
pub type Ticket = u64;

/// Addresses take turns, and so do the connections of an address: a connection with many large
/// requests does not delay the others. A request that its address's or its connection's share keeps
/// out lets others pass.
/// Invariant: who waits fits in as soon as nobody holds anything, whatever its size.
pub struct LargeRequests {
    shares: Shares,
    next: Ticket,
    pub held_bytes: u64,
    held: HashMap<Ticket, u64>,
    by_address: HashMap<IpAddr, u64>,
    by_connection: HashMap<u64, u64>,
    waiting: Turns<IpAddr, OfAddress>,
    waiting_count: u64,
    /// Reasons why requests wait since room was last given: the total, or shares of addresses.
    is_full: bool,
    full_addresses: HashSet<IpAddr>,
}

type OfAddress = Turns<u64, BTreeMap<Ticket, Waiting>>;

struct Waiting {
    size: u64,
    granted: oneshot::Sender<()>,
}

impl LargeRequests {
    pub fn new(shares: Shares) -> Self {
        Self {
            shares,
            next: 0,
            held_bytes: 0,
            held: HashMap::new(),
            by_address: HashMap::new(),
            by_connection: HashMap::new(),
            waiting: Turns::default(),
            waiting_count: 0,
            is_full: false,
            full_addresses: HashSet::new(),
        }
    }

    pub fn waiting(&self) -> u64 {
        self.waiting_count
    }

    /// Return a ticket, and what to wait for if there is no room now.
    pub fn ask(&mut self, who: Holder, size: u64) -> (Ticket, Option<oneshot::Receiver<()>>) {
        let ticket = self.next;
        self.next += 1;
        let (granted, grant) = oneshot::channel();
        let of_connection = self.waiting.entry(who.address).entry(who.connection);
        of_connection.insert(ticket, Waiting { size, granted });
        self.waiting_count += 1;
        self.grant();
        (ticket, (!self.held.contains_key(&ticket)).then_some(grant))
    }

    /// A request was answered, or given up.
    pub fn end(&mut self, who: Holder, ticket: Ticket) {
        self.take_waiting(who, ticket);
        if let Some(size) = self.held.remove(&ticket) {
            self.held_bytes -= size;
            take_from(&mut self.by_address, who.address, size);
            take_from(&mut self.by_connection, who.connection, size);
        }
        self.grant();
    }

    /// Whether somebody waits for what a connection holds.
    pub fn others_wait_for(&self, who: Holder) -> bool {
        let own = self.waiting.get(who.address);
        let neighbours = own.is_some_and(|own| own.len() > usize::from(own.has(who.connection)));
        if self.is_full {
            return neighbours || self.waiting.len() > usize::from(own.is_some());
        }
        neighbours && self.full_addresses.contains(&who.address)
    }

    fn grant(&mut self) {
        while let Some((who, ticket)) = self.first_that_fits() {
            let Some(waiting) = self.take_waiting(who, ticket) else { return };
            if let Some(of_address) = self.waiting.get_mut(who.address) {
                of_address.move_to_end(who.connection);
                self.waiting.move_to_end(who.address);
            }
            self.held.insert(ticket, waiting.size);
            self.held_bytes += waiting.size;
            *self.by_address.entry(who.address).or_default() += waiting.size;
            *self.by_connection.entry(who.connection).or_default() += waiting.size;
            // A receiver that has gone ends its ticket itself.
            let _ = waiting.granted.send(());
        }
    }

    fn first_that_fits(&mut self) -> Option<(Holder, Ticket)> {
        self.is_full = false;
        self.full_addresses.clear();
        for (address, of_address) in self.waiting.iter() {
            for (connection, of_connection) in of_address.iter() {
                let Some((&ticket, waiting)) = of_connection.first_key_value() else { continue };
                let held = self.by_connection.get(&connection).copied().unwrap_or(0);
                if !fits(held, waiting.size, self.shares.per_connection) {
                    continue;
                }
                let held = self.by_address.get(&address).copied().unwrap_or(0);
                if !fits(held, waiting.size, self.shares.per_address) {
                    // The first keeps its place: smaller ones behind it would pass without end.
                    self.full_addresses.insert(address);
                    break;
                }
                if !fits(self.held_bytes, waiting.size, self.shares.total) {
                    self.is_full = true;
                    return None;
                }
                return Some((Holder { connection, address }, ticket));
            }
        }
        None
    }

    /// Take a request out of those that wait, if it is among them.
    fn take_waiting(&mut self, who: Holder, ticket: Ticket) -> Option<Waiting> {
        let of_address = self.waiting.get_mut(who.address)?;
        let of_connection = of_address.get_mut(who.connection)?;
        let waiting = of_connection.remove(&ticket)?;
        if of_connection.is_empty() {
            of_address.remove(who.connection);
            if of_address.len() == 0 {
                self.waiting.remove(who.address);
            }
        }
        self.waiting_count -= 1;
        Some(waiting)
    }
}

/// Whether a request fits in: one of any size does where nothing is held.
fn fits(held: u64, size: u64, limit: u64) -> bool {
    held == 0 || held + size <= limit
}

/// A map in the order of turns: who comes joins at its end.
struct Turns<K, V> {
    next: u64,
    places: HashMap<K, u64>,
    order: BTreeMap<u64, (K, V)>,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Self {
        Self { next: 0, places: HashMap::new(), order: BTreeMap::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Default> Turns<K, V> {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn has(&self, key: K) -> bool {
        self.places.contains_key(&key)
    }

    fn get(&self, key: K) -> Option<&V> {
        self.order.get(self.places.get(&key)?).map(|(_, value)| value)
    }

    fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.order.get_mut(self.places.get(&key)?).map(|(_, value)| value)
    }

    fn entry(&mut self, key: K) -> &mut V {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        &mut self.order.entry(place).or_insert_with(|| (key, V::default())).1
    }

    fn remove(&mut self, key: K) {
        if let Some(place) = self.places.remove(&key) {
            self.order.remove(&place);
        }
    }

    fn move_to_end(&mut self, key: K) {
        let Some(place) = self.places.get_mut(&key) else { return };
        if let Some(entry) = self.order.remove(place) {
            self.next += 1;
            *place = self.next;
            self.order.insert(self.next, entry);
        }
    }

    fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.order.values().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large(total: u64, per_address: u64, per_connection: u64) -> LargeRequests {
        LargeRequests::new(Shares { total, per_address, per_connection })
    }

    fn who(address: u8, connection: u64) -> Holder {
        Holder { connection, address: IpAddr::from([127, 0, 0, address]) }
    }

    fn is_let_in(grant: &mut Option<oneshot::Receiver<()>>) -> bool {
        grant.as_mut().is_none_or(|grant| grant.try_recv().is_ok())
    }

    #[test]
    fn connections_take_turns() {
        let mut large = large(10, 10, 10);
        let first = who(1, 1);
        let (last, _) = large.ask(first, 10);
        let mut last = (first, last);
        let asks = [1, 1, 1, 2, 2, 3].map(|connection| who(1, connection));
        let mut waiting: Vec<_> = asks.map(|who| (who, large.ask(who, 10))).into();
        assert_eq!(large.waiting(), 6);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            large.end(last.0, last.1);
            let let_in = waiting.iter_mut().position(|(_, (_, grant))| is_let_in(grant));
            let (who, (ticket, _)) = waiting.remove(let_in.expect("one is let in"));
            order.push(who.connection);
            last = (who, ticket);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        large.end(last.0, last.1);
        assert_eq!((large.held_bytes, large.waiting(), large.waiting.len()), (0, 0, 0));
        assert!(large.by_address.is_empty() && large.by_connection.is_empty());
    }

    #[test]
    fn who_gives_up_leaves_nothing() {
        let mut large = large(10, 10, 10);
        let (held, _) = large.ask(who(1, 1), 10);
        let (given_up, _grant) = large.ask(who(1, 2), 10);
        large.end(who(1, 2), given_up);
        assert_eq!((large.waiting(), large.waiting.len()), (0, 0));
        large.end(who(1, 1), held);
        assert_eq!(large.held_bytes, 0);
    }

    #[test]
    fn who_waits_for_its_own_share_lets_others_pass() {
        let mut large = large(20, 10, 5);
        assert!(large.ask(who(1, 1), 5).1.is_none());
        let (_, mut own) = large.ask(who(1, 1), 1);
        assert!(own.is_some(), "its connection's share is used up");
        assert!(!large.others_wait_for(who(1, 1)), "it waits for itself");
        let (last_of_address, none) = large.ask(who(1, 2), 5);
        assert!(none.is_none());
        assert!(large.ask(who(1, 3), 1).1.is_some(), "its address's share is used up");
        assert!(large.others_wait_for(who(1, 1)) && large.others_wait_for(who(1, 2)));
        assert!(large.ask(who(2, 4), 5).1.is_none(), "another address has its own");
        assert!(!large.others_wait_for(who(2, 4)));
        assert_eq!((large.held_bytes, large.waiting()), (15, 2));
        large.end(who(1, 2), last_of_address);
        assert_eq!((large.held_bytes, large.waiting()), (11, 1));
        assert!(!is_let_in(&mut own));
        let (ticket, none) = large.ask(who(3, 5), 30);
        assert!(none.is_some(), "nobody passes a request that waits for the total");
        assert!(large.ask(who(4, 6), 1).1.is_some());
        assert!(large.others_wait_for(who(2, 4)) && large.others_wait_for(who(3, 5)));
        large.end(who(3, 5), ticket);
        assert_eq!((large.held_bytes, large.waiting()), (12, 1));
    }
}
