//! The I/O thread: what all connections and calls share, and the orders of Python.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::budgets::{network_of, Budget, Holder, Uploads};
use crate::facts::ConnectionFacts;
use crate::frames::ClientFrames;
use crate::guarded::Debt;
use crate::large::LargeRequests;
use crate::options::{Options, Routes};
use crate::outcomes::{End, Outcome, RESOURCE_EXHAUSTED};
use crate::pace::{self, Watch};
use crate::shared::{Command, Event, Number, Order, Shared};

/// Commands of Python for one call, and whether it wants another message.
#[derive(Default)]
pub struct Slot {
    commands: RefCell<VecDeque<Command>>,
    pub wanted: Notify,
    /// Told to who waits for it now when Python says something to the client.
    pub answered: Notify,
    waker: RefCell<Option<Waker>>,
}

impl Slot {
    fn put(&self, command: Command) {
        if matches!(command, Command::Next) {
            self.wanted.notify_one();
            return;
        }
        self.commands.borrow_mut().push_back(command);
        self.answered.notify_waiters();
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub fn take(&self) -> Option<Command> {
        self.commands.borrow_mut().pop_front()
    }

    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Command> {
        if let Some(command) = self.take() {
            return Poll::Ready(command);
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its handshakes are under way.
    Beginning,
    Serving,
    /// Its client was asked to make its next calls over another one.
    Leaving,
    /// It speaks another protocol, which Python serves behind this thread's TLS.
    Relayed,
}

/// One client connection.
pub struct Connection {
    pub holder: Holder,
    pub facts: Arc<ConnectionFacts>,
    pub frames: Rc<RefCell<ClientFrames>>,
    pub stage: Cell<Stage>,
    /// Bytes of large requests that have come, and of those let in that have not (pace.rs).
    pub received: Cell<u64>,
    pub awaited: Cell<u64>,
    /// Bytes of answers that the transport has taken.
    pub taken: Cell<u64>,
    pub send_away: Notify,
    pub end: Notify,
}

impl Connection {
    pub fn end_for_standstill(&self, edge: &Edge) {
        edge.shared.add(Number::Ended, 1);
        edge.shared.signal();
        self.end.notify_one();
    }
}

pub struct Edge {
    pub shared: Arc<Shared>,
    pub options: Options,
    pub routes: Routes,
    pub calls: RefCell<HashMap<u64, Rc<Slot>>>,
    pub unread: RefCell<Budget>,
    /// Connections with a call beyond their address's share.
    guests: RefCell<HashSet<u64>>,
    pub parked: RefCell<Budget>,
    pub rare: RefCell<Budget>,
    pub large: RefCell<LargeRequests>,
    pub watch: RefCell<Watch>,
    pub uploads: RefCell<Uploads>,
    pub hot_waiting: Cell<u64>,
    pub draining: Cell<bool>,
    pub connections: RefCell<HashMap<u64, Rc<Connection>>>,
    of_address: RefCell<HashMap<IpAddr, u64>>,
    debts: RefCell<HashMap<IpAddr, Rc<Debt>>>,
    open_connections: Cell<u64>,
    leaving: Cell<u64>,
    relayed: Cell<u64>,
    next_id: Cell<u64>,
    flush: Notify,
    flush_due: Cell<bool>,
    /// No client is taken in any more.
    pub closing: Notify,
    pub stopped: Notify,
}

impl Edge {
    pub fn new(shared: Arc<Shared>, options: Options, routes: Routes) -> Rc<Self> {
        let share = options.max_calls_per_address;
        let unread = Budget::new(
            options.max_unread_bytes,
            options.max_unread_bytes_per_address,
            options.max_unread_bytes_per_connection,
        );
        Rc::new(Self {
            calls: RefCell::default(),
            unread: RefCell::new(unread.with_reserve(options.unread_reserve_bytes)),
            guests: RefCell::default(),
            parked: RefCell::new(Budget::new(options.max_hot_calls, share, share)),
            rare: RefCell::new(Budget::new(options.max_rare_calls, share, share)),
            large: RefCell::new(LargeRequests::new(options.large_requests)),
            watch: RefCell::default(),
            uploads: RefCell::new(Uploads::new()),
            hot_waiting: Cell::new(0),
            draining: Cell::new(false),
            connections: RefCell::default(),
            of_address: RefCell::default(),
            debts: RefCell::default(),
            open_connections: Cell::new(0),
            leaving: Cell::new(0),
            relayed: Cell::new(0),
            next_id: Cell::new(1),
            flush: Notify::new(),
            flush_due: Cell::new(false),
            closing: Notify::new(),
            stopped: Notify::new(),
            shared,
            options,
            routes,
        })
    }

    /// An event for Python; it hears of all events of one turn together.
    pub fn put(&self, event: Event) {
        self.shared.put(event);
        self.wake_python();
    }

    pub fn wake_python(&self) {
        if !self.flush_due.replace(true) {
            self.flush.notify_one();
        }
    }

    /// Signal Python, for as long as this runs.
    pub async fn tell_python(self: Rc<Self>) {
        loop {
            self.flush.notified().await;
            self.flush_due.set(false);
            self.shared.signal();
        }
    }

    pub fn next_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// Carry out the orders of Python, for as long as this runs.
    pub async fn take_orders(self: Rc<Self>) {
        loop {
            self.shared.ordered.notified().await;
            for order in self.shared.take_orders() {
                match order {
                    Order::Call(id, command) => self.deliver(id, command),
                    Order::Drain => self.drain(),
                    Order::SendAway(most) => self.send_some_away(most),
                    Order::Stop => self.stopped.notify_one(),
                }
            }
        }
    }

    fn deliver(&self, id: u64, command: Command) {
        if let Some(slot) = self.calls.borrow().get(&id) {
            slot.put(command);
        } else if let Command::Answer { notify, .. } = command {
            self.not_taken(id, notify);
        }
    }

    /// An answer was given that the client does not get.
    pub fn not_taken(&self, id: u64, notify: bool) {
        self.shared.add(Number::NotTaken, 1);
        if notify {
            self.shared.put(Event::NotTaken { id });
        }
        self.wake_python();
    }

    fn drain(&self) {
        self.draining.set(true);
        self.closing.notify_one();
        for connection in self.connections.borrow().values() {
            connection.send_away.notify_one();
        }
    }

    /// Ask clients to go, those first that came first, and tell Python which.
    ///
    /// The newest client was perhaps sent here by another broker a moment ago.
    fn send_some_away(&self, most: usize) {
        let connections = self.connections.borrow();
        let serving = connections.values().filter(|one| one.stage.get() == Stage::Serving);
        let mut serving: Vec<_> = serving.collect();
        serving.sort_unstable_by_key(|one| one.holder.connection);
        serving.truncate(most);
        for connection in &serving {
            connection.stage.set(Stage::Leaving);
            connection.send_away.notify_one();
        }
        let count = serving.len() as u64;
        self.shared.add(Number::SentAway, count);
        self.count_leaving(count as i64);
        let peers = serving.iter().map(|one| one.facts.peer.clone()).collect();
        self.put(Event::SentAway { peers });
    }

    /// End a call because of a limit, and count it.
    pub fn refuse(&self, limit: Number, reason: &str) -> End {
        self.shared.add(limit, 1);
        // A listener has to find it counted.
        self.shared.signal();
        End::Status(RESOURCE_EXHAUSTED, reason.to_owned())
    }

    /// End a call with a large answer while there is too much that clients have not read.
    ///
    /// Others at the address of a client that does not read are not refused for it: a connection
    /// that has read everything may have one such call at a time beyond its address's share, and
    /// from the reserve beyond the total, for as long as it keeps what is returned.
    pub fn check_unread(self: &Rc<Self>, who: Holder) -> Outcome<Option<Guest<'_>>> {
        let unread = self.unread.borrow();
        if unread.has_room(who) {
            return Ok(None);
        }
        // The client that is the cause of it has a limited time to read on.
        pace::watch(self);
        let connection = who.connection;
        if unread.has_room_for_first(who) && self.guests.borrow_mut().insert(connection) {
            return Ok(Some(Guest { edge: self, connection }));
        }
        Err(self.refuse(Number::RefusedUnread, "clients have too many unread answers"))
    }

    /// End a call whose answer there is no room for: many were admitted before one was answered.
    pub fn check_answer<'a>(
        self: &'a Rc<Self>,
        who: Holder,
        guest: &mut Option<Guest<'a>>,
    ) -> Outcome<()> {
        if guest.is_none() || !self.unread.borrow().has_room_for_first(who) {
            *guest = self.check_unread(who)?;
        }
        Ok(())
    }

    pub fn check_unread_of_connection(&self, who: Holder) -> Outcome<()> {
        if self.unread.borrow().connection_has_room(who) {
            return Ok(());
        }
        Err(self.refuse(Number::RefusedUnread, "this client has too many unread answers"))
    }

    pub fn show_large(&self) {
        let large = self.large.borrow();
        self.shared.set(Number::LargeBytes, large.held_bytes);
        self.shared.set(Number::LargeWaiting, large.waiting());
    }

    /// Take in a client that connects; None: there are too many.
    pub fn admit(&self, address: SocketAddr) -> Option<Rc<Connection>> {
        let ip = network_of(address.ip());
        let of_address = self.of_address.borrow().get(&ip).copied().unwrap_or(0);
        let all = self.open_connections.get() + self.shared.waiting_for_python();
        if all >= self.options.max_connections
            || of_address >= self.options.max_connections_per_address
        {
            self.shared.add(Number::RefusedConnections, 1);
            self.wake_python();
            return None;
        }
        let id = self.next_id();
        let guard = self.options.guard.clone();
        let connection = Rc::new(Connection {
            holder: Holder { connection: id, address: ip },
            facts: Arc::new(ConnectionFacts::new(address.to_string())),
            frames: Rc::new(RefCell::new(ClientFrames::new(guard))),
            stage: Cell::new(Stage::Beginning),
            received: Cell::new(0),
            awaited: Cell::new(0),
            taken: Cell::new(0),
            send_away: Notify::new(),
            end: Notify::new(),
        });
        if self.draining.get() {
            connection.send_away.notify_one();
        }
        *self.of_address.borrow_mut().entry(ip).or_default() += 1;
        self.connections.borrow_mut().insert(id, connection.clone());
        self.count_connections(1);
        Some(connection)
    }

    pub fn debt_of(&self, address: IpAddr) -> Rc<Debt> {
        self.debts.borrow_mut().entry(address).or_default().clone()
    }

    fn count_connections(&self, change: i64) {
        let open = self.open_connections.get().saturating_add_signed(change);
        self.open_connections.set(open);
        self.shared.set(Number::Connections, open);
    }

    fn count_leaving(&self, change: i64) {
        let leaving = self.leaving.get().saturating_add_signed(change);
        self.leaving.set(leaving);
        self.shared.set(Number::Leaving, leaving);
    }

    pub fn count_relayed(&self, change: i64) {
        let relayed = self.relayed.get().saturating_add_signed(change);
        self.relayed.set(relayed);
        self.shared.set(Number::Relayed, relayed);
    }

    /// Let go of a client that was admitted.
    pub fn forget(&self, connection: &Connection) {
        self.connections.borrow_mut().remove(&connection.holder.connection);
        match connection.stage.get() {
            Stage::Leaving => self.count_leaving(-1),
            Stage::Relayed => self.count_relayed(-1),
            Stage::Beginning | Stage::Serving => {}
        }
        self.count_connections(-1);
        let ip = connection.holder.address;
        let mut of_address = self.of_address.borrow_mut();
        if let Some(left) = of_address.get_mut(&ip) {
            *left -= 1;
            if *left == 0 {
                of_address.remove(&ip);
                // A client that comes back in debt is still in debt.
                self.debts.borrow_mut().retain(|of, debt| {
                    debt.left_s() > 0.0 || (*of != ip && of_address.contains_key(of))
                });
            }
        }
        if self.draining.get() {
            self.wake_python();
        }
    }
}

/// A call beyond its address's share of what is unread, until it is dropped.
pub struct Guest<'a> {
    edge: &'a Edge,
    connection: u64,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.edge.guests.borrow_mut().remove(&self.connection);
    }
}
