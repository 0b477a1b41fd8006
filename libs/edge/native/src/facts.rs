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

const MAX_NAMES: usize = 64;
const TIMEOUT: &str = "grpc-timeout";

#[derive(Default)]
struct Decoded {
    peer: Option<Py<PyString>>,
    pairs: HashMap<HeaderName, (HeaderValue, Py<PyString>, Py<PyString>)>,
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
            _ => latest.insert(Arc::new(headers)).clone(),
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
                    if decoded.pairs.len() >= MAX_NAMES {
                        decoded.pairs.clear();
                    }
                    decoded.pairs.insert(
                        name.clone(),
                        (value.clone(), key.clone_ref(py), shown.clone_ref(py)),
                    );
                    (key, shown)
                }
            };
            dict.set_item(key, value)?;
        }
        let made = PyMappingProxy::new(py, dict.as_mapping()).into_any().unbind();
        decoded.last = Some((headers.clone(), made.clone_ref(py)));
        Ok(made)
    }
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
}
