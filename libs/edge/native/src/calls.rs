//! One call: its request to Python, Python's answer to the client, and who has to hear of its end.

use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::time::Sleep;

use crate::budgets::Budget;
use crate::edge::{Connection, Edge, Slot};
use crate::facts::CallFacts;
use crate::messages::{timeout_of, Answer, Messages};
use crate::options::{Kind, Route};
use crate::outcomes::{End, Outcome, DEADLINE_EXCEEDED, INVALID_ARGUMENT, OK, UNIMPLEMENTED};
use crate::shared::{Command, Event, Number};

const SMALL_ANSWER_BYTES: u64 = 4 << 10; // of sends and acks: not worth the counting

struct Call<'a> {
    edge: &'a Rc<Edge>,
    connection: &'a Rc<Connection>,
    route: Route,
    headers: HeaderMap,
    deadline: Option<Instant>,
}

/// Serve a call of any kind. Thousands of calls wait at the same time, so what only some calls
/// need, or only their beginning, is not part of this future.
pub async fn serve(
    edge: &Rc<Edge>,
    connection: &Rc<Connection>,
    request: Box<Request<RecvStream>>,
    answer: &mut Answer,
) -> Outcome<()> {
    let Some((call, mut messages)) = begin(edge, connection, *request, answer)? else {
        return Ok(());
    };
    let mut sleep = call.deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
    let mut work = pin!(async {
        match call.route.kind {
            Kind::HotUnary(method) => hot(call, method, false, &mut messages, answer).await,
            Kind::HotStream(method) => hot(call, method, true, &mut messages, answer).await,
            Kind::Unary => Box::pin(unary(call, &mut messages, answer)).await,
            Kind::ServerStream => Box::pin(server_stream(call, &mut messages, answer)).await,
            Kind::Talk => Box::pin(talk(call, &mut messages, answer)).await,
        }
    });
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(outcome),
        Poll::Pending => expired(&mut sleep, cx),
    })
    .await
}

/// Look at the headers of a call; None: it is answered.
fn begin<'a>(
    edge: &'a Rc<Edge>,
    connection: &'a Rc<Connection>,
    request: Request<RecvStream>,
    answer: &mut Answer,
) -> Outcome<Option<(Call<'a>, Messages)>> {
    let (head, body) = request.into_parts();
    let messages = Messages::new(edge.clone(), connection.clone(), body);
    if head.method != Method::POST {
        answer.end_http(StatusCode::METHOD_NOT_ALLOWED);
        return Ok(None);
    }
    let kind = head.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    if !kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        answer.end_http(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        return Ok(None);
    }
    let encoding = head.headers.get("grpc-encoding").map(|value| value.as_bytes());
    if encoding.is_some_and(|encoding| encoding != b"identity") {
        return Err(End::Status(UNIMPLEMENTED, "requests are not compressed here".to_owned()));
    }
    let size = size_of(&head.headers);
    let limit = edge.options.max_metadata_bytes as usize;
    if size > limit {
        let reason = format!("the headers have {size} bytes, the limit is {limit}");
        return Err(edge.refuse(Number::RefusedSize, &reason));
    }
    let Some(route) = edge.routes.get(head.uri.path()) else {
        return Err(End::Status(UNIMPLEMENTED, "there is no such method".to_owned()));
    };
    let deadline = timeout_of(&head.headers).and_then(|time| ends_at(Instant::now(), time));
    let route = route.clone();
    if edge.shared.takes_panic() {
        panic!("ordered by a test");
    }
    Ok(Some((Call { edge, connection, route, headers: head.headers, deadline }, messages)))
}

/// As RFC 9113, 6.5.2, counts them.
fn size_of(headers: &HeaderMap) -> usize {
    const PER_HEADER_BYTES: usize = 32;
    let sizes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    sizes.map(|size| size + PER_HEADER_BYTES).sum()
}

fn expired(
    sleep: &mut Option<Pin<Box<Sleep>>>,
    cx: &mut std::task::Context<'_>,
) -> Poll<Outcome<()>> {
    match sleep {
        Some(sleep) => sleep
            .as_mut()
            .poll(cx)
            .map(|()| Err(End::Status(DEADLINE_EXCEEDED, "the client's time is over".to_owned()))),
        None => Poll::Pending,
    }
}

impl Call<'_> {
    /// Return the request; one that may not pass ends its call here.
    async fn first_request(&self, messages: &mut Messages) -> Outcome<Vec<Bytes>> {
        let request = self.in_time(messages).await?;
        request.ok_or_else(|| End::Status(INVALID_ARGUMENT, "the request is empty".to_owned()))
    }

    /// Receive the request; if it is not here at once, others may have to wait for its end.
    async fn in_time(&self, messages: &mut Messages) -> Outcome<Option<Vec<Bytes>>> {
        let mut request = pin!(messages.next(self.route.max_request_bytes));
        let at_once = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
        if let Poll::Ready(request) = at_once {
            return request;
        }
        let address = self.connection.holder.address;
        let (key, expelled) = self.edge.uploads.borrow_mut().begin(address);
        let _upload = Ends(|| self.edge.uploads.borrow_mut().end(key));
        sweep_uploads(self.edge);
        tokio::select! {
            request = request => request,
            reason = expelled => match reason {
                Ok(reason) => Err(self.edge.refuse(Number::RefusedUpload, &reason)),
                Err(_) => Err(End::Gone),
            },
        }
    }

    fn open(&self) -> Open<'_> {
        let id = self.edge.next_id();
        let slot = Rc::new(Slot::default());
        self.edge.calls.borrow_mut().insert(id, slot.clone());
        Open { edge: self.edge, id, slot, state: Cell::new(State::Waiting) }
    }

    fn facts(&mut self, clamped: bool) -> CallFacts {
        let max_time = clamped.then_some(self.route.max_time);
        let headers = std::mem::take(&mut self.headers);
        CallFacts::new(self.connection.facts.clone(), headers, self.deadline, max_time)
    }

    fn hold(
        &self,
        budget: fn(&Edge) -> &std::cell::RefCell<Budget>,
        shown: Option<Number>,
        amount: u64,
    ) -> Held<'_> {
        let held = Held { edge: self.edge, budget, shown, call: self.connection.holder, amount };
        budget(self.edge).borrow_mut().take(held.call, amount);
        held.show();
        held
    }

    fn hold_rare(&self) -> Outcome<Held<'_>> {
        if !self.edge.rare.borrow().has_room(self.connection.holder) {
            return Err(self.edge.refuse(Number::RefusedCalls, "too many calls under way"));
        }
        Ok(self.hold(|edge| &edge.rare, Some(Number::RareCalls), 1))
    }

    fn hold_unread(&self, size: u64) -> Held<'_> {
        self.hold(|edge| &edge.unread, Some(Number::UnreadBytes), size)
    }
}

async fn hot(
    mut call: Call<'_>,
    method: u8,
    streams: bool,
    messages: &mut Messages,
    answer: &mut Answer,
) -> Outcome<()> {
    let edge = call.edge;
    let who = call.connection.holder;
    let mut guest = if streams {
        edge.check_unread(who)?
    } else {
        edge.check_unread_of_connection(who)?;
        None
    };
    // On the heap, where it ends before the wait for Python begins.
    let request = Box::pin(call.first_request(messages)).await?;
    if (streams && !edge.parked.borrow().has_room(who))
        || edge.hot_waiting.get() >= edge.options.max_hot_calls
    {
        return Err(edge.refuse(Number::RefusedCalls, "too many calls under way"));
    }
    let facts = call.facts(true);
    let open = call.open();
    let command = {
        let _parked = streams.then(|| call.hold(|edge| &edge.parked, None, 1));
        count_hot(edge, 1);
        let _waiting = Ends(|| count_hot(edge, -1));
        edge.put(Event::Hot { id: open.id, method, request, facts });
        open.command(answer).await?
    };
    messages.end_ticket();
    match command {
        Command::Answer { frames, size, notify } => {
            open.state.set(State::Answered { notify, counts: streams });
            let small = !streams && size <= SMALL_ANSWER_BYTES;
            if small {
                answer.send_at_once(frames)?;
            } else {
                if streams {
                    edge.check_answer(who, &mut guest)?;
                }
                let _unread = call.hold_unread(size);
                answer.send(frames, &call.connection.taken).await?;
            }
            answer.end(OK, "");
            open.taken(notify);
            Ok(())
        }
        other => open.other(other, answer),
    }
}

async fn unary(mut call: Call<'_>, messages: &mut Messages, answer: &mut Answer) -> Outcome<()> {
    call.edge.check_unread_of_connection(call.connection.holder)?;
    let facts = call.facts(true);
    let (command, open) = {
        let _rare = call.hold_rare()?;
        let request = Some(call.first_request(messages).await?);
        let open = call.open();
        call.edge.put(Event::Rare { id: open.id, route: call.route.index, request, facts });
        (open.command(answer).await?, open)
    };
    messages.end_ticket();
    match command {
        Command::Answer { frames, size, .. } => {
            open.state.set(State::Done);
            let _unread = call.hold_unread(size);
            answer.send(frames, &call.connection.taken).await?;
            answer.end(OK, "");
            Ok(())
        }
        other => open.other(other, answer),
    }
}

async fn server_stream(
    mut call: Call<'_>,
    messages: &mut Messages,
    answer: &mut Answer,
) -> Outcome<()> {
    let edge = call.edge;
    let who = call.connection.holder;
    let mut guest = edge.check_unread(who)?;
    let facts = call.facts(true);
    let _rare = call.hold_rare()?;
    let request = Some(call.first_request(messages).await?);
    let open = call.open();
    edge.put(Event::Rare { id: open.id, route: call.route.index, request, facts });
    let command = open.command(answer).await?;
    messages.end_ticket();
    match command {
        Command::Send { frames, size } => {
            edge.check_answer(who, &mut guest)?;
            send(&call, &open, answer, frames, size).await?;
        }
        other => return open.other(other, answer),
    }
    respond(&call, &open, answer).await
}

async fn talk(mut call: Call<'_>, messages: &mut Messages, answer: &mut Answer) -> Outcome<()> {
    let _guest = call.edge.check_unread(call.connection.holder)?;
    let facts = call.facts(false);
    let _rare = call.hold_rare()?;
    let open = call.open();
    let route = &call.route;
    call.edge.put(Event::Rare { id: open.id, route: route.index, request: None, facts });
    tokio::select! {
        outcome = respond(&call, &open, answer) => outcome,
        failure = listen(&call, &open, messages) => Err(failure),
    }
}

/// Give Python the messages that it wants; return what ends the call.
async fn listen(call: &Call<'_>, open: &Open<'_>, messages: &mut Messages) -> End {
    loop {
        loop {
            tokio::select! {
                () = open.slot.wanted.notified() => break,
                () = open.slot.answered.notified() => messages.end_ticket(),
            }
        }
        match messages.next(call.route.max_request_bytes).await {
            Ok(Some(message)) => call.edge.put(Event::Message { id: open.id, message }),
            Ok(None) => call.edge.put(Event::HalfClosed { id: open.id }),
            Err(end) => return end,
        }
    }
}

/// Send a stream's responses until Python ends it.
async fn respond(call: &Call<'_>, open: &Open<'_>, answer: &mut Answer) -> Outcome<()> {
    loop {
        match open.command(answer).await? {
            Command::Send { frames, size } => {
                send(call, open, answer, frames, size).await?;
            }
            other => return open.other(other, answer),
        }
    }
}

async fn send(
    call: &Call<'_>,
    open: &Open<'_>,
    answer: &mut Answer,
    frames: Vec<Bytes>,
    size: u64,
) -> Outcome<()> {
    let _unread = call.hold_unread(size);
    answer.send(frames, &call.connection.taken).await?;
    call.edge.put(Event::Taken { id: open.id });
    Ok(())
}

fn count_hot(edge: &Edge, change: i64) {
    let waiting = edge.hot_waiting.get().saturating_add_signed(change);
    edge.hot_waiting.set(waiting);
    edge.shared.set(Number::HotCalls, waiting);
}

fn sweep_uploads(edge: &Rc<Edge>) {
    if std::mem::replace(&mut edge.uploads.borrow_mut().sweeping, true) {
        return;
    }
    let edge = edge.clone();
    tokio::task::spawn_local(async move {
        let options = &edge.options;
        loop {
            tokio::time::sleep(options.slow_upload).await;
            let mut uploads = edge.uploads.borrow_mut();
            uploads.sweeping = uploads.sweep(
                options.slow_upload,
                options.max_upload,
                options.max_slow_uploads,
                options.max_slow_uploads_per_address,
            );
            if !uploads.sweeping {
                return;
            }
        }
    });
}

#[derive(Clone, Copy)]
enum State {
    /// Python has the call and has not answered.
    Waiting,
    /// It has; the transport has not taken all. `counts`: this edge can tell that it was not.
    Answered {
        notify: bool,
        counts: bool,
    },
    Done,
}

/// A call that Python has heard of. However it ends, Python hears of that, too.
struct Open<'a> {
    edge: &'a Rc<Edge>,
    id: u64,
    slot: Rc<Slot>,
    state: Cell<State>,
}

impl Open<'_> {
    /// Wait for what Python says next.
    async fn command(&self, answer: &mut Answer) -> Outcome<Command> {
        poll_fn(|cx| {
            // The client first: an answer that it cannot get is not taken.
            if answer.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(End::Gone));
            }
            self.slot.poll(cx).map(Ok)
        })
        .await
    }

    /// Do what is no answer.
    fn other(&self, command: Command, answer: &mut Answer) -> Outcome<()> {
        self.state.set(State::Done);
        match command {
            Command::Fail { code, reason } => Err(End::Status(code, reason)),
            _ => {
                answer.end(OK, "");
                Ok(())
            }
        }
    }

    fn taken(&self, notify: bool) {
        self.state.set(State::Done);
        if notify {
            // Nobody is in a hurry for it.
            self.edge.shared.put(Event::Taken { id: self.id });
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.edge.calls.borrow_mut().remove(&self.id);
        match self.state.get() {
            State::Done => {}
            State::Answered { notify, counts } if notify || counts => {
                self.edge.not_taken(self.id, notify);
            }
            State::Answered { .. } => {}
            State::Waiting => match self.slot.take() {
                Some(Command::Answer { notify, .. }) => self.edge.not_taken(self.id, notify),
                _ => self.edge.put(Event::Gone { id: self.id }),
            },
        }
    }
}

/// A part of a budget that is held until it is dropped.
struct Held<'a> {
    edge: &'a Rc<Edge>,
    budget: fn(&Edge) -> &std::cell::RefCell<Budget>,
    shown: Option<Number>,
    call: crate::budgets::Holder,
    amount: u64,
}

impl Held<'_> {
    fn show(&self) {
        if let Some(number) = self.shown {
            self.edge.shared.set(number, (self.budget)(self.edge).borrow().held);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        (self.budget)(self.edge).borrow_mut().give_back(self.call, self.amount);
        self.show();
    }
}

/// Does something when it is dropped.
struct Ends<F: Fn()>(F);

impl<F: Fn()> Drop for Ends<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Instants far away are no deadline.
fn ends_at(now: Instant, time: Duration) -> Option<Instant> {
    now.checked_add(time)
}
