//! AckMessageRequests; the twin is `strata_broker.base.wire.plain_ack`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::walk::{push_varint, usual, Unusual, Usual};

const GROUP: u8 = 0x0a;
const TOPIC: u8 = 0x12;
const ENTRY: u8 = 0x1a;
const MESSAGE_ID: u8 = 0x0a;
const HANDLE: u8 = 0x12;
const RESULT: u8 = 0x12;

/// See the module's head; `strata_edge.passes` has the interface.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct AckPass {
    /// The status of an answer, and that of each of its entries.
    ok_answer: Vec<u8>,
    ok_entry: Vec<u8>,
}

#[pymethods]
impl AckPass {
    #[new]
    fn new(ok_answer: Vec<u8>, ok_entry: Vec<u8>) -> Self {
        Self { ok_answer, ok_entry }
    }

    /// Return (group and topic, handles, the answer if all is well), or None: the twin decides.
    fn read<'py>(&self, py: Python<'py>, request: &[u8]) -> PyResult<Option<Read<'py>>> {
        let Ok((head, entries)) = walk(request) else {
            return Ok(None);
        };
        let mut answer = self.ok_answer.clone();
        answer.reserve(request.len() + entries.len() * (self.ok_entry.len() + 2));
        for (entry, _) in &entries {
            answer.push(RESULT);
            push_varint(&mut answer, (entry.len() + self.ok_entry.len()) as u64);
            answer.extend_from_slice(entry);
            answer.extend_from_slice(&self.ok_entry);
        }
        let handles = PyList::new(py, entries.iter().map(|(_, handle)| PyString::new(py, handle)))?;
        Ok(Some((PyBytes::new(py, head), handles, PyBytes::new(py, &answer))))
    }
}

type Read<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyBytes>);

/// Bytes of group and topic; of each entry its bytes and its handle.
type Walked<'a> = (&'a [u8], Vec<(&'a [u8], &'a str)>);

fn walk(request: &[u8]) -> Usual<Walked<'_>> {
    let (group, rest) = field(request, GROUP)?;
    let (topic, mut rest) = field(rest, TOPIC)?;
    let head = &request[..request.len() - rest.len()];
    usual(group.is_ascii() && topic.is_ascii() && !rest.is_empty())?;
    let mut entries = Vec::with_capacity(rest.len() / 64 + 1);
    while !rest.is_empty() {
        let (entry, next) = field(rest, ENTRY)?;
        let (message_id, behind) = field(entry, MESSAGE_ID)?;
        let (handle, end) = field(behind, HANDLE)?;
        usual(!message_id.is_empty() && !handle.is_empty() && end.is_empty())?;
        usual(message_id.is_ascii() && handle.is_ascii())?;
        entries.push((entry, std::str::from_utf8(handle).map_err(|_| Unusual)?));
        rest = next;
    }
    Ok((head, entries))
}

/// Return the payload of the first field, of less than 128 bytes, and what follows it.
fn field(data: &[u8], key: u8) -> Usual<(&[u8], &[u8])> {
    let [first, length, rest @ ..] = data else {
        return Err(Unusual);
    };
    let length = usize::from(*length);
    usual(*first == key && length < 0x80 && length <= rest.len())?;
    Ok(rest.split_at(length))
}
