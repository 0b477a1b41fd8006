//! Types that Python sees: `Server`, `HotCall`, `CallInfo`.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use bytes::Bytes;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::edge::Edge;
use crate::facts::CallFacts;
use crate::frames_out::{framed, joined};
use crate::locks::lock;
use crate::options::{Kind, Options, Route, Routes};
use crate::server;
use crate::shared::{Command, Event, Order, Shared, NUMBERS};
use crate::tls;

const HOT_METHODS: [&str; 4] = ["SendMessage", "ReceiveMessage", "AckMessage", "EndTransaction"];

const OPEN: u8 = 0;
const ANSWERED: u8 = 1;
const GONE: u8 = 2;

/// Kinds of what `drain` returns beside hot calls.
const RARE: u8 = 0;
const MESSAGE: u8 = 1;
const HALF_CLOSED: u8 = 2;
const ENDED: u8 = 3;
const TAKEN: u8 = 4;
const SENT_AWAY: u8 = 5;
const HANDED_OVER: u8 = 6;

/// The event loop's side of the queues. Used by its thread only; the mutex is never contended.
struct Core {
    shared: Arc<Shared>,
    loop_side: Mutex<LoopSide>,
    /// Runs `flush` at the end of the loop's turn.
    schedule: OnceLock<Py<PyAny>>,
}

#[derive(Default)]
struct LoopSide {
    pending: Vec<Order>,
    scheduled: bool,
    hot: HashMap<u64, Py<HotCall>>,
    on_not_taken: HashMap<u64, Py<PyAny>>,
}

impl Core {
    /// Send an order with the others of this turn.
    fn order(&self, py: Python<'_>, order: Order) -> PyResult<()> {
        {
            let mut side = lock(&self.loop_side);
            side.pending.push(order);
            if std::mem::replace(&mut side.scheduled, true) {
                return Ok(());
            }
        }
        match self.schedule.get() {
            Some(schedule) => schedule.call0(py).map(drop),
            None => Ok(()),
        }
    }
}

/// One call of a hot method; see `ports.HotCall`.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct HotCall {
    id: u64,
    core: Arc<Core>,
    #[pyo3(get)]
    method: Py<PyString>,
    #[pyo3(get)]
    request: Py<PyBytes>,
    facts: CallFacts,
    state: AtomicU8,
    on_gone: Mutex<Vec<Py<PyAny>>>,
}

#[pymethods]
impl HotCall {
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.facts.metadata(py)
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> Py<PyString> {
        self.facts.peer(py)
    }

    fn time_left_s(&self) -> Option<f64> {
        self.facts.time_left_s()
    }

    fn done(&self) -> bool {
        self.state.load(Ordering::Relaxed) != OPEN
    }

    fn on_gone(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        match self.state.load(Ordering::Relaxed) {
            OPEN => lock(&self.on_gone).push(callback),
            GONE => call_soon(py, callback)?,
            _ => {}
        }
        Ok(())
    }

    #[pyo3(signature = (responses, on_not_taken = None))]
    fn complete(
        &self,
        py: Python<'_>,
        responses: &Bound<'_, PyAny>,
        on_not_taken: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        if self.done() {
            return on_not_taken.map_or(Ok(()), |callback| call_soon(py, callback));
        }
        // A response that is not bytes is refused before the call counts as answered.
        let (frames, size) = framed(responses)?;
        self.answered();
        let notify = on_not_taken.is_some();
        if let Some(callback) = on_not_taken {
            lock(&self.core.loop_side).on_not_taken.insert(self.id, callback);
        }
        self.core.order(py, Order::Call(self.id, Command::Answer { frames, size, notify }))
    }

    fn fail(&self, py: Python<'_>, status: &str, reason: String) -> PyResult<()> {
        if self.done() {
            return Ok(());
        }
        let code = code_of(status)?;
        self.answered();
        self.core.order(py, Order::Call(self.id, Command::Fail { code, reason }))
    }
}

impl HotCall {
    fn answered(&self) {
        self.state.store(ANSWERED, Ordering::Relaxed);
        let kept = std::mem::take(&mut *lock(&self.on_gone));
        let known = lock(&self.core.loop_side).hot.remove(&self.id);
        drop((kept, known));
    }
}

fn call_soon(py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
    let running = py.import("asyncio")?.call_method0("get_running_loop")?;
    running.call_method1("call_soon", (callback,)).map(drop)
}

fn code_of(status: &str) -> PyResult<u8> {
    const CODES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let code = CODES.iter().position(|name| *name == status);
    code.map(|code| code as u8).ok_or_else(|| PyValueError::new_err(format!("no status {status}")))
}

/// View of a call for the handler of a rare RPC; see `ports.CallInfo`.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct CallInfo {
    facts: CallFacts,
}

#[pymethods]
impl CallInfo {
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.facts.metadata(py)
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> Py<PyString> {
        self.facts.peer(py)
    }

    fn time_left_s(&self) -> Option<f64> {
        self.facts.time_left_s()
    }
}

/// The I/O thread, its queues and methods.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct Server {
    core: Arc<Core>,
    options: Options,
    routes: Mutex<Routes>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl Server {
    /// Args: options: numbers by the names of `EdgeOptions` and `GuardLimits`.
    #[new]
    fn new(options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let shared = Arc::new(Shared::new().map_err(PyOSError::new_err)?);
        Ok(Self {
            core: Arc::new(Core { shared, loop_side: Mutex::default(), schedule: OnceLock::new() }),
            options: Options::from_python(options)?,
            routes: Mutex::default(),
            thread: Mutex::default(),
        })
    }

    /// Add a method before the start. Kinds: hot unary, hot stream, unary, server stream, talk.
    fn add_route(
        &self,
        path: String,
        kind: &str,
        max_request_bytes: u64,
        max_time_s: f64,
    ) -> PyResult<u32> {
        let hot = || -> PyResult<u8> {
            let name = path.rsplit('/').next().unwrap_or_default();
            let at = HOT_METHODS.iter().position(|method| *method == name);
            at.map(|at| at as u8).ok_or_else(|| PyValueError::new_err(format!("{path} is not hot")))
        };
        let kind = match kind {
            "hot unary" => Kind::HotUnary(hot()?),
            "hot stream" => Kind::HotStream(hot()?),
            "unary" => Kind::Unary,
            "server stream" => Kind::ServerStream,
            "talk" => Kind::Talk,
            other => return Err(PyValueError::new_err(format!("no kind {other}"))),
        };
        let max_time = std::time::Duration::try_from_secs_f64(max_time_s)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut routes = lock(&self.routes);
        let index = routes.len() as u32;
        routes.insert(path, Route { index, kind, max_request_bytes, max_time });
        Ok(index)
    }

    /// Take a pair of PEM texts for new connections; ValueError says why it cannot be used.
    #[pyo3(signature = (certificate, key, min_version="1.2".to_owned(), ciphers=Vec::new()))]
    fn set_certificate(
        &self,
        certificate: &[u8],
        key: &[u8],
        min_version: String,
        ciphers: Vec<String>,
    ) -> PyResult<()> {
        let policy = tls::Policy { min_version, ciphers };
        let config = tls::config(certificate, key, &policy).map_err(PyValueError::new_err)?;
        *lock(&self.core.shared.tls) = Some(config);
        Ok(())
    }

    /// Serve a listening socket, which belongs to the server from now on.
    ///
    /// Args:
    ///     schedule: called without arguments when `flush` is due at the end of the turn.
    ///     hands_over: whether connections of another protocol are given to Python.
    #[pyo3(signature = (descriptor, schedule, hands_over = false))]
    fn start(&self, descriptor: i32, schedule: Py<PyAny>, hands_over: bool) -> PyResult<()> {
        // SAFETY: the caller gives the descriptor away.
        let listener = unsafe { std::net::TcpListener::from_raw_fd(descriptor) };
        listener.set_nonblocking(true).map_err(PyOSError::new_err)?;
        let _ = self.core.schedule.set(schedule);
        let shared = self.core.shared.clone();
        let options = Options { hands_over, ..self.options.clone() };
        let routes = lock(&self.routes).clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(PyOSError::new_err)?;
        let work = move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => {
                        server::run(Edge::new(shared, options, routes), listener).await;
                    }
                    Err(_) => shared.signal(),
                }
            });
        };
        let thread = std::thread::Builder::new().name("edge".to_owned()).spawn(work);
        *lock(&self.thread) = Some(thread.map_err(PyOSError::new_err)?);
        Ok(())
    }

    /// Readable when `drain` has something to return.
    #[getter]
    fn event_descriptor(&self) -> i32 {
        self.core.shared.descriptor()
    }

    #[getter]
    fn is_running(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Return the hot calls that arrived, their number by method, and all other events.
    ///
    /// Orders given from now on wait for `flush`.
    fn drain<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, [u64; HOT_METHODS.len()], Bound<'py, PyList>)> {
        let events = self.core.shared.take_events();
        lock(&self.core.loop_side).scheduled = true;
        let (hot, rest) = (PyList::empty(py), PyList::empty(py));
        let mut counts = [0; HOT_METHODS.len()];
        for event in events {
            match event {
                Event::Hot { id, method, request, facts } => {
                    let call = self.hot_call(py, id, method, &request, facts)?;
                    counts[usize::from(method)] += 1;
                    hot.append(call)?;
                }
                Event::Rare { id, route, request, facts } => {
                    let request = request.map(|request| joined(py, &request)).transpose()?;
                    let info = Py::new(py, CallInfo { facts })?;
                    rest.append((RARE, id, (route, request, info)))?;
                }
                Event::Message { id, message } => {
                    rest.append((MESSAGE, id, joined(py, &message)?))?;
                }
                Event::HalfClosed { id } => rest.append((HALF_CLOSED, id, py.None()))?,
                Event::Taken { id } => {
                    let callback = lock(&self.core.loop_side).on_not_taken.remove(&id);
                    if callback.is_none() {
                        rest.append((TAKEN, id, py.None()))?;
                    }
                }
                Event::NotTaken { id } => {
                    let callback = lock(&self.core.loop_side).on_not_taken.remove(&id);
                    if let Some(callback) = callback {
                        rest.append((ENDED, id, vec![callback]))?;
                    }
                }
                Event::SentAway { peers } => rest.append((SENT_AWAY, 0, peers))?,
                Event::HandedOver { descriptor, peer, is_secured } => {
                    self.core.shared.taken_over();
                    let given = (descriptor.into_raw_fd(), peer, is_secured);
                    rest.append((HANDED_OVER, 0, given))?;
                }
                Event::Gone { id } => {
                    let callbacks = self.gone(id);
                    rest.append((ENDED, id, callbacks))?;
                }
            }
        }
        Ok((hot, counts, rest))
    }

    /// Send what was ordered since the last time.
    fn flush(&self) {
        let mut pending = {
            let mut side = lock(&self.core.loop_side);
            side.scheduled = false;
            std::mem::take(&mut side.pending)
        };
        if !pending.is_empty() {
            self.core.shared.order(&mut pending);
        }
    }

    /// Answer a rare unary call.
    fn answer(&self, py: Python<'_>, id: u64, response: &Bound<'_, PyAny>) -> PyResult<()> {
        let (frames, size) = framed(PyList::new(py, [response])?.as_any())?;
        self.order(py, id, Command::Answer { frames, size, notify: false })
    }

    /// Send responses of a rare stream; an event tells when they are taken.
    fn send(&self, py: Python<'_>, id: u64, responses: &Bound<'_, PyAny>) -> PyResult<()> {
        let (frames, size) = framed(responses)?;
        self.order(py, id, Command::Send { frames, size })
    }

    fn finish(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.order(py, id, Command::Finish)
    }

    fn fail(&self, py: Python<'_>, id: u64, status: &str, reason: String) -> PyResult<()> {
        self.order(py, id, Command::Fail { code: code_of(status)?, reason })
    }

    /// Ask for the next message of a talk; an event brings it.
    fn next(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.order(py, id, Command::Next)
    }

    /// Take no new connection and send clients away.
    fn send_away(&self) {
        self.core.shared.order(&mut vec![Order::Drain]);
    }

    /// Ask at most so many clients to go; an event tells which.
    fn send_some_away(&self, most: usize) {
        self.core.shared.order(&mut vec![Order::SendAway(most)]);
    }

    /// End everything; return when the thread has ended. Its last events can be drained then.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.flush();
        self.core.shared.order(&mut vec![Order::Stop]);
        let thread = lock(&self.thread).take();
        match thread.map(|thread| py.detach(|| thread.join())) {
            Some(Err(_)) => Err(PyRuntimeError::new_err("the edge's thread panicked")),
            _ => Ok(()),
        }
    }

    /// Counters and gauges, in the order of `number_names`.
    fn numbers(&self) -> Vec<u64> {
        self.core.shared.all_numbers()
    }

    #[staticmethod]
    fn number_names() -> Vec<&'static str> {
        NUMBERS.to_vec()
    }

    /// The next call panics: for the test of what a panic does.
    fn panic_once(&self) {
        self.core.shared.order_panic();
    }
}

impl Server {
    fn order(&self, py: Python<'_>, id: u64, command: Command) -> PyResult<()> {
        self.core.order(py, Order::Call(id, command))
    }

    fn hot_call(
        &self,
        py: Python<'_>,
        id: u64,
        method: u8,
        request: &[Bytes],
        facts: CallFacts,
    ) -> PyResult<Py<HotCall>> {
        let method = match method {
            0 => intern!(py, "SendMessage"),
            1 => intern!(py, "ReceiveMessage"),
            2 => intern!(py, "AckMessage"),
            _ => intern!(py, "EndTransaction"),
        };
        let call = HotCall {
            id,
            core: self.core.clone(),
            method: method.clone().unbind(),
            request: joined(py, request)?,
            facts,
            state: AtomicU8::new(OPEN),
            on_gone: Mutex::default(),
        };
        let call = Py::new(py, call)?;
        lock(&self.core.loop_side).hot.insert(id, call.clone_ref(py));
        Ok(call)
    }

    /// A call has ended without its answer; return who wants to hear of it.
    fn gone(&self, id: u64) -> Vec<Py<PyAny>> {
        let known = lock(&self.core.loop_side).hot.remove(&id);
        match known {
            Some(call) => {
                let call = call.get();
                call.state.store(GONE, Ordering::Relaxed);
                std::mem::take(&mut *lock(&call.on_gone))
            }
            None => Vec::new(),
        }
    }
}
