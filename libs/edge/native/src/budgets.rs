//! Limits on what clients hold at once, in shares: bytes unread, calls, slow requests.
//!
//! The same rules as in shares.py and grpcio_uploads.py.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A budget of which no connection and no address can take more than its share.
pub struct Budget {
    total: u64,
    per_address: u64,
    per_connection: u64,
    /// Beyond the total, for connections that hold nothing.
    reserve: u64,
    pub held: u64,
    by_connection: HashMap<u64, u64>,
    by_address: HashMap<IpAddr, u64>,
}

/// Holder of bytes: a connection and its address, as `network_of` has it.
#[derive(Clone, Copy)]
pub struct Holder {
    pub connection: u64,
    pub address: IpAddr,
}

/// Return what counts as one address: of IPv6 the first 64 bits, since one client has all others.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

impl Budget {
    pub fn new(total: u64, per_address: u64, per_connection: u64) -> Self {
        Self {
            total,
            per_address,
            per_connection,
            reserve: 0,
            held: 0,
            by_connection: HashMap::new(),
            by_address: HashMap::new(),
        }
    }

    pub fn with_reserve(self, reserve: u64) -> Self {
        Self { reserve, ..self }
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
        self.held < self.total.saturating_add(self.reserve)
            && !self.by_connection.contains_key(&who.connection)
    }

    /// Whether others may be refused for what the connections of an address hold.
    pub fn is_used_up(&self, address: IpAddr) -> bool {
        let held = self.by_address.get(&address).copied().unwrap_or(0);
        self.held >= self.total || held >= self.per_address
    }

    pub fn held_by(&self, connection: u64) -> u64 {
        self.by_connection.get(&connection).copied().unwrap_or(0)
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

pub fn take_from<K: std::hash::Hash + Eq>(held: &mut HashMap<K, u64>, key: K, amount: u64) {
    if let Some(left) = held.get_mut(&key) {
        *left = left.saturating_sub(amount);
        if *left == 0 {
            held.remove(&key);
        }
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
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::9"));
        assert_ne!(of("2001:db8:1:2::9"), of("2001:db8:1:3::9"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("::ffff:10.0.0.1"), of("::ffff:10.0.0.2"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn who_holds_nothing_has_the_reserve() {
        let mut budget = Budget::new(10, 10, 10).with_reserve(5);
        let who = |connection| Holder { connection, address: IpAddr::from([127, 0, 0, 1]) };
        budget.take(who(1), 12);
        assert!(!budget.has_room(who(2)) && budget.has_room_for_first(who(2)));
        assert!(!budget.has_room_for_first(who(1)));
        assert!(budget.is_used_up(who(2).address));
        budget.take(who(2), 3);
        assert!(!budget.has_room_for_first(who(3)), "the reserve is used up");
        budget.give_back(who(1), 12);
        assert!(budget.has_room(who(3)) && !budget.is_used_up(who(3).address));
        assert_eq!((budget.held_by(1), budget.held_by(2)), (0, 3));
    }
}
