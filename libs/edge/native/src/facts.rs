//! Facts of a call that Python may ask for beside its request: headers, client's address, time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::header::{HeaderName, HeaderValue};
use http::HeaderMap;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMappingProxy, PyString};
use std::collections::HashMap;

use crate::locks::lock;

/// Facts of all calls of a connection; repeated headers are decoded once.
pub struct ConnectionFacts {
    pub peer: String,
    decoded: Mutex<Decoded>,
}

const MAX_NAMES: usize = 64;

#[derive(Default)]
struct Decoded {
    peer: Option<Py<PyString>>,
    pairs: HashMap<HeaderName, (HeaderValue, Py<PyString>, Py<PyString>)>,
    last: Option<(HeaderMap, Py<PyAny>)>,
}

impl ConnectionFacts {
    pub fn new(peer: String) -> Self {
        Self { peer, decoded: Mutex::default() }
    }

    fn peer(&self, py: Python<'_>) -> Py<PyString> {
        let mut decoded = lock(&self.decoded);
        decoded.peer.get_or_insert_with(|| PyString::new(py, &self.peer).unbind()).clone_ref(py)
    }

    fn metadata(&self, py: Python<'_>, headers: &HeaderMap) -> PyResult<Py<PyAny>> {
        let mut decoded = lock(&self.decoded);
        if let Some((seen, made)) = &decoded.last {
            if seen == headers {
                return Ok(made.clone_ref(py));
            }
        }
        let dict = PyDict::new(py);
        for (name, value) in headers {
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
            | "grpc-timeout"
            | "grpc-encoding"
            | "grpc-accept-encoding"
    )
}

enum Metadata {
    Raw(HeaderMap),
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
        Self { connection, metadata: Mutex::new(Metadata::Raw(headers)), deadline, clamp }
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
