//! Sends of a turn that differ in their messages only, and their answers.
//!
//! Python decides about such sends once, not once for each.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList, PyString};

use super::sends::{ascii, Message, SendPass};

/// Times that calls have left, in so many parts of a second, are alike.
const TIMES_PER_S: f64 = 100.0;

/// Headers, client's address, namespace and name of the topic, type of the messages, calls, ids of
/// their messages, bytes of their requests, the least time that one has left.
pub type Group<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    usize,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Vec<usize>,
    Option<f64>,
);

/// The same objects for headers and address, the topic, the type, the time left.
type Key = (usize, usize, Vec<u8>, usize, Option<i64>);

/// Return the groups of sends that are alike, and the calls that are in none.
pub fn gather<'py>(
    pass: &SendPass,
    py: Python<'py>,
    calls: &Bound<'py, PyList>,
    max_request_bytes: usize,
) -> PyResult<(Vec<Group<'py>>, Bound<'py, PyList>)> {
    let mut groups: Vec<Group<'py>> = Vec::new();
    let mut known: HashMap<Key, usize> = HashMap::new();
    let others = PyList::empty(py);
    for call in calls {
        let request = call.getattr(intern!(py, "request"))?.cast_into::<PyBytes>()?;
        let data = request.as_bytes();
        let read = if data.len() <= max_request_bytes { pass.messages(data).ok() } else { None };
        let Some((names, messages)) = read.filter(|(_, all)| are_of_one_type(all)) else {
            others.append(call)?;
            continue;
        };
        let message_type = messages[0].properties.message_type;
        let metadata = call.getattr(intern!(py, "metadata"))?;
        let peer = call.getattr(intern!(py, "peer"))?;
        let left_s: Option<f64> = call.call_method0(intern!(py, "time_left_s"))?.extract()?;
        let key = (
            metadata.as_ptr() as usize,
            peer.as_ptr() as usize,
            messages[0].topic.to_vec(),
            message_type,
            left_s.map(|left_s| (left_s * TIMES_PER_S) as i64),
        );
        let at = *known.entry(key).or_insert_with(|| {
            let (namespace, name) = (PyString::new(py, names.0), PyString::new(py, names.1));
            let (calls, ids) = (PyList::empty(py), PyList::empty(py));
            let sizes = Vec::new();
            groups.push((metadata, peer, namespace, name, message_type, calls, ids, sizes, left_s));
            groups.len() - 1
        });
        let (_, _, _, _, _, calls, ids, sizes, least_s) = &mut groups[at];
        calls.append(call)?;
        let own_ids = messages.iter().map(|message| ascii(py, message.properties.message_id));
        ids.append(PyList::new(py, own_ids.collect::<Vec<_>>())?)?;
        sizes.push(data.len());
        *least_s = least_s.zip(left_s).map(|(least_s, left_s)| least_s.min(left_s));
    }
    Ok((groups, others))
}

fn are_of_one_type(messages: &[Message<'_>]) -> bool {
    let first = messages[0].properties.message_type;
    messages.iter().all(|message| message.properties.message_type == first)
}

/// Answer calls whose messages are all stored; return which answers failed, with the exception.
pub fn answer_each<'py>(
    pass: &SendPass,
    py: Python<'py>,
    calls: &Bound<'py, PyList>,
    message_ids: Vec<Vec<PyBackedStr>>,
    offsets: Vec<u64>,
) -> PyResult<Vec<(usize, PyErr)>> {
    let messages: usize = message_ids.iter().map(Vec::len).sum();
    if messages != offsets.len() || message_ids.len() != calls.len() {
        return Err(PyValueError::new_err("an offset for each message is needed"));
    }
    let mut offsets = &offsets[..];
    let mut failed = Vec::new();
    for (number, (call, ids)) in calls.iter().zip(&message_ids).enumerate() {
        let (own, rest) = offsets.split_at(ids.len());
        offsets = rest;
        let answer = PyBytes::new(py, &pass.answer(ids, own));
        if let Err(error) = call.call_method1(intern!(py, "complete"), ((answer,),)) {
            failed.push((number, error));
        }
    }
    Ok(failed)
}
