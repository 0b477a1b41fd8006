//! Facts of a call that Python may ask for beside its request: headers, client's address, time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::header::{HeaderName, HeaderValue};
use http::HeaderMap;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMappingProxy, PyString};
use std::collections::HashMap;

use crate::locks::lock;

/// Facts of all calls of a connection; repeated headers are kept and decoded once.
pub struct ConnectionFacts {
    pub peer: String,
    latest: Mutex<Option<Arc<HeaderMap>>>,
    decoded: Mutex<Decoded>,
}

// An idle connection may keep so much of headers: enough for those that clients send repeatedly.
const MAX_NAMES: usize = 64;
const MAX_PAIR_VALUE_BYTES: usize = 256;
const MAX_PAIRS_BYTES: usize = 8 << 10;
const MAX_KEPT_BYTES: usize = 4 << 10; // of the headers of one call, as a whole
const TIMEOUT: &str = "grpc-timeout";

#[derive(Default)]
struct Decoded {
    peer: Option<Py<PyString>>,
    pairs: HashMap<HeaderName, (HeaderValue, Py<PyString>, Py<PyString>)>,
    pairs_bytes: usize,
    last: Option<(Arc<HeaderMap>, Py<PyAny>)>,
}

impl ConnectionFacts {
    pub fn new(peer: String) -> Self {
        Self { peer, latest: Mutex::default(), decoded: Mutex::default() }
    }

    /// Return headers that mean the same as a call's: those of the call before, if they do.
    fn shared(&self, mut headers: HeaderMap) -> Arc<HeaderMap> {
        // The time that a client gives a call differs from call to call, and was read before.
        headers.remove(TIMEOUT);
        let mut latest = lock(&self.latest);
        match &*latest {
            Some(seen) if **seen == headers => seen.clone(),
            _ if size_of(&headers) > MAX_KEPT_BYTES => {
                *latest = None;
                Arc::new(headers)
            }
            _ => latest.insert(Arc::new(own_copy(&headers))).clone(),
        }
    }

    fn peer(&self, py: Python<'_>) -> Py<PyString> {
        let mut decoded = lock(&self.decoded);
        decoded.peer.get_or_insert_with(|| PyString::new(py, &self.peer).unbind()).clone_ref(py)
    }

    fn metadata(&self, py: Python<'_>, headers: &Arc<HeaderMap>) -> PyResult<Py<PyAny>> {
        let mut decoded = lock(&self.decoded);
        if let Some((seen, made)) = &decoded.last {
            if Arc::ptr_eq(seen, headers) {
                return Ok(made.clone_ref(py));
            }
        }
        let dict = PyDict::new(py);
        for (name, value) in headers.iter() {
            let text = name.as_str();
            // Binary headers carry bytes and are nobody's business here.
            if text.ends_with("-bin") || is_own(text) {
                continue;
            }
            let known = decoded.pairs.get(name).filter(|(seen, _, _)| seen == value);
            let (key, value) = match known {
                Some((_, key, shown)) => (key.clone_ref(py), shown.clone_ref(py)),
                None => {
                    let key = PyString::new(py, text).unbind();
                    let shown = String::from_utf8_lossy(value.as_bytes());
                    let shown = PyString::new(py, &shown).unbind();
                    decoded.keep(name, value, (key.clone_ref(py), shown.clone_ref(py)));
                    (key, shown)
                }
            };
            dict.set_item(key, value)?;
        }
        let made = PyMappingProxy::new(py, dict.as_mapping()).into_any().unbind();
        let is_small = size_of(headers) <= MAX_KEPT_BYTES;
        decoded.last = is_small.then(|| (headers.clone(), made.clone_ref(py)));
        Ok(made)
    }

    /// Bytes of headers that are kept for the calls to come.
    #[cfg(test)]
    fn kept_bytes(&self) -> usize {
        let decoded = lock(&self.decoded);
        let latest = lock(&self.latest).as_deref().map_or(0, size_of);
        decoded.pairs_bytes + latest + decoded.last.as_ref().map_or(0, |(last, _)| size_of(last))
    }
}

impl Decoded {
    /// Keep a header for the next call, if it is small.
    fn keep(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
        texts: (Py<PyString>, Py<PyString>),
    ) {
        let size = name.as_str().len() + value.len();
        if value.len() > MAX_PAIR_VALUE_BYTES || size > MAX_PAIRS_BYTES {
            return;
        }
        if let Some((seen, _, _)) = self.pairs.remove(name) {
            self.pairs_bytes -= name.as_str().len() + seen.len();
        }
        if self.pairs.len() >= MAX_NAMES || self.pairs_bytes + size > MAX_PAIRS_BYTES {
            self.pairs.clear();
            self.pairs_bytes = 0;
        }
        if let Some((name, value)) = own_header(name, value) {
            self.pairs.insert(name, (value, texts.0, texts.1));
            self.pairs_bytes += size;
        }
    }
}

fn size_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Return headers that share no memory with the frames that they came in.
///
/// h2 cuts names and values out of its buffer: a header of ten bytes would keep 16 KiB alive.
fn own_copy(headers: &HeaderMap) -> HeaderMap {
    let pairs = headers.iter().filter_map(|(name, value)| own_header(name, value));
    let mut own = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in pairs {
        own.append(name, value);
    }
    own
}

fn own_header(name: &HeaderName, value: &HeaderValue) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
    Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
}

/// Headers of HTTP and gRPC themselves.
fn is_own(name: &str) -> bool {
    matches!(
        name,
        "te" | "content-type"
            | "content-length"
            | TIMEOUT
            | "grpc-encoding"
            | "grpc-accept-encoding"
    )
}

enum Metadata {
    Raw(Arc<HeaderMap>),
    Made(Py<PyAny>),
}

pub struct CallFacts {
    connection: Arc<ConnectionFacts>,
    metadata: Mutex<Metadata>,
    /// When the client gives up.
    deadline: Option<Instant>,
    /// The most a handler sees; None: as the client says.
    clamp: Option<Instant>,
}

impl CallFacts {
    pub fn new(
        connection: Arc<ConnectionFacts>,
        headers: HeaderMap,
        deadline: Option<Instant>,
        max_time: Option<Duration>,
    ) -> Self {
        // A call without a deadline has none: how long it may take is its handler's to say.
        let clamp = deadline.and(max_time).and_then(|time| Instant::now().checked_add(time));
        let metadata = Mutex::new(Metadata::Raw(connection.shared(headers)));
        Self { connection, metadata, deadline, clamp }
    }

    pub fn peer(&self, py: Python<'_>) -> Py<PyString> {
        self.connection.peer(py)
    }

    pub fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut metadata = lock(&self.metadata);
        let made = match &*metadata {
            Metadata::Made(made) => made.clone_ref(py),
            Metadata::Raw(headers) => self.connection.metadata(py, headers)?,
        };
        *metadata = Metadata::Made(made.clone_ref(py));
        Ok(made)
    }

    pub fn time_left_s(&self) -> Option<f64> {
        let ends = match (self.deadline, self.clamp) {
            (Some(deadline), Some(clamp)) => deadline.min(clamp),
            (deadline, clamp) => deadline.or(clamp)?,
        };
        Some(ends.saturating_duration_since(Instant::now()).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(client: &'static str, timeout: &'static str) -> HeaderMap {
        let pairs = [("x-mq-client-id", client), (TIMEOUT, timeout)];
        let pairs = pairs
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.into_iter().collect()
    }

    #[test]
    fn headers_that_differ_in_their_time_only_are_kept_once() {
        let facts = ConnectionFacts::new("127.0.0.1:1".to_owned());
        let first = facts.shared(headers("a", "3S"));
        assert!(Arc::ptr_eq(&first, &facts.shared(headers("a", "2999m"))));
        assert_eq!(first.len(), 1);
        let other = facts.shared(headers("b", "3S"));
        assert!(!Arc::ptr_eq(&first, &other));
        assert_eq!(other["x-mq-client-id"], "b");
        assert_eq!(*first, *facts.shared(headers("a", "3S")));
    }

    #[test]
    fn what_is_kept_of_headers_is_bounded() {
        Python::initialize();
        Python::attach(|py| {
            let facts = ConnectionFacts::new("127.0.0.1:1".to_owned());
            for number in 0..1_000 {
                let mut headers = HeaderMap::new();
                for (name, size) in [("small", 200), ("large", 15_000 * (number % 2))] {
                    let name = HeaderName::try_from(format!("{name}{number}")).unwrap();
                    headers.insert(name, HeaderValue::try_from("v".repeat(size)).unwrap());
                }
                let headers = facts.shared(headers);
                let shown = facts.metadata(py, &headers).unwrap();
                let sizes = ["small", "large"].map(|name| {
                    let value = shown.bind(py).get_item(format!("{name}{number}")).unwrap();
                    value.extract::<String>().unwrap().len()
                });
                assert_eq!(sizes, [200, 15_000 * (number % 2)]);
                assert!(facts.kept_bytes() <= MAX_PAIRS_BYTES + 2 * MAX_KEPT_BYTES);
            }
            let again: HeaderMap = facts.shared(headers("a", "3S")).as_ref().clone();
            let first = facts.shared(again.clone());
            let shown = facts.metadata(py, &first).unwrap();
            let second = facts.metadata(py, &facts.shared(again)).unwrap();
            assert!(shown.is(&second), "unchanged headers are one object");
        });
    }
}
