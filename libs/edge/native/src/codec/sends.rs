//! SendMessageRequests: what they name, what the broker stores, and the columns of its batch.
//!
//! The twin is `strata_broker.sends.outgoing` (`parse_send`, `MessagePreparer.prepare`); what
//! Python wrote there once comes in through `Limits` and `Fragments`. A request is walked twice:
//! hashing and copying its bodies comes after the checks of its topic, which may refuse it.

use std::collections::HashSet;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};

use super::alike;
use super::digests::{md5_of_each, Md5Digest};
use super::texts::{key_hash, named, packed_id, plain, upper_hex, utf8};
use super::walk::{push_varint, usual, Fields, Unusual, Usual, NONE};

const NANOS_PER_MS: u64 = 1_000_000;
const NANOS_PER_S: u64 = 1_000_000_000;
/// No sum of seconds and nanoseconds below it leaves 64 bits.
const MAX_SECONDS: u64 = 1 << 50;
/// Numbers of enums in use take one byte.
const MAX_ENUM: u64 = 0x7f;
/// Bodies of so many bytes are hashed without the interpreter's lock.
const UNLOCKED_BYTES: usize = 256 << 10;

// Fields of a SendMessageResponse and of its entries.
const RESULT: u8 = 0x12;
const MESSAGE_ID: u8 = 0x12;
const TRANSACTION_ID: u8 = 0x1a;
const OFFSET: u8 = 0x20;

// MessageType; the index into `SendPass::types`, too.
const NORMAL: usize = 1;
const FIFO: usize = 2;
const DELAY: usize = 3;
const TRANSACTION: usize = 4;

/// Limits of a message; the names are those of `Limits`.
#[derive(FromPyObject)]
struct Limits {
    max_messages: usize,
    max_body_bytes: usize,
    max_properties_bytes: usize,
    max_overhead_bytes: usize,
    max_property_count: usize,
    max_key_count: usize,
    max_message_id_bytes: usize,
    max_message_group_bytes: usize,
}

/// Fragments that the twin adds to what is stored.
#[derive(FromPyObject)]
struct Fragments {
    /// Before the 32 digits of the body's MD5.
    digest: Vec<u8>,
    identity: Vec<u8>,
    /// Before the number of a message type.
    message_type: Vec<u8>,
    system_properties: Vec<u8>,
    user_property: Vec<u8>,
    message_group: Vec<u8>,
    /// Status OK of an answer and of each of its entries.
    ok_status: Vec<u8>,
}

/// See the module's head; `strata_edge.passes` has the interface.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct SendPass {
    limits: Limits,
    reserved: HashSet<Vec<u8>>,
    fragments: Fragments,
    types: Vec<Py<PyAny>>,
    outgoing_type: Py<PyType>,
    new_tuple: Py<PyAny>,
}

#[pymethods]
impl SendPass {
    #[new]
    fn new(
        py: Python<'_>,
        outgoing_type: Bound<'_, PyType>,
        message_types: Vec<Py<PyAny>>,
        limits: Limits,
        fragments: Fragments,
        reserved: Vec<String>,
    ) -> PyResult<Self> {
        if message_types.len() <= TRANSACTION {
            return Err(PyValueError::new_err("message_types: one per number is needed"));
        }
        Ok(Self {
            limits,
            reserved: reserved.into_iter().map(String::into_bytes).collect(),
            fragments,
            types: message_types,
            outgoing_type: outgoing_type.unbind(),
            new_tuple: py.get_type::<PyTuple>().getattr(intern!(py, "__new__"))?.unbind(),
        })
    }

    /// Return (namespace, topic, message ids), or None: the twin decides.
    fn read<'py>(&self, py: Python<'py>, request: &[u8]) -> PyResult<Option<Named<'py>>> {
        let Ok(((namespace, name), messages)) = self.messages(request) else {
            return Ok(None);
        };
        let ids = messages.iter().map(|message| ascii(py, message.properties.message_id));
        let ids = PyList::new(py, ids)?;
        Ok(Some((PyString::new(py, namespace), PyString::new(py, name), ids)))
    }

    /// Return the outgoing messages of each of the requests, which `read` took.
    fn store_each<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<PyBackedBytes>,
        senders: Vec<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        if requests.len() != senders.len() {
            return Err(PyValueError::new_err("a sender for each request is needed"));
        }
        let mut read = Vec::with_capacity(requests.len());
        for request in &requests {
            let (_, messages) = self
                .messages(request)
                .map_err(|Unusual| PyValueError::new_err("the request was not read"))?;
            read.push(messages);
        }
        let bodies: Vec<&[u8]> = read.iter().flatten().map(|message| message.body).collect();
        let total: usize = bodies.iter().map(|body| body.len()).sum();
        let digests = if total < UNLOCKED_BYTES {
            md5_of_each(&bodies)
        } else {
            py.detach(|| md5_of_each(&bodies))
        };
        let mut digests = digests.into_iter();
        let all = PyList::empty(py);
        let mut buffer = Vec::new();
        for (messages, sender) in read.iter().zip(&senders) {
            let outgoing = PyList::empty(py);
            for (message, digest) in messages.iter().zip(&mut digests) {
                outgoing.append(self.outgoing(py, message, sender, &digest, &mut buffer)?)?;
            }
            all.append(outgoing)?;
        }
        Ok(all)
    }

    /// Return the answer to messages that are stored at these offsets.
    fn sent<'py>(
        &self,
        py: Python<'py>,
        message_ids: Vec<PyBackedStr>,
        offsets: Vec<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if message_ids.len() != offsets.len() {
            return Err(PyValueError::new_err("an offset for each message is needed"));
        }
        Ok(PyBytes::new(py, &self.answer(&message_ids, &offsets)))
    }

    /// Return sends of a turn that differ in their messages only, and the other calls.
    #[allow(clippy::type_complexity)]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        calls: &Bound<'py, PyList>,
        max_request_bytes: usize,
    ) -> PyResult<(Vec<alike::Group<'py>>, Bound<'py, PyList>)> {
        alike::gather(self, py, calls, max_request_bytes)
    }

    /// Answer calls whose messages are stored at these offsets; return what failed.
    fn answer_each<'py>(
        &self,
        py: Python<'py>,
        calls: &Bound<'py, PyList>,
        message_ids: Vec<Vec<PyBackedStr>>,
        offsets: Vec<u64>,
    ) -> PyResult<Vec<(usize, PyErr)>> {
        alike::answer_each(self, py, calls, message_ids, offsets)
    }
}

impl SendPass {
    /// The answer to messages that are stored.
    pub(super) fn answer(&self, message_ids: &[PyBackedStr], offsets: &[u64]) -> Vec<u8> {
        let ok = &self.fragments.ok_status;
        let mut answer = ok.clone();
        let mut entry = Vec::new();
        for (message_id, offset) in message_ids.iter().zip(offsets) {
            entry.clear();
            entry.extend_from_slice(ok);
            // The id is the transaction id as well.
            for key in [MESSAGE_ID, TRANSACTION_ID] {
                entry.push(key);
                push_varint(&mut entry, message_id.len() as u64);
                entry.extend_from_slice(message_id.as_bytes());
            }
            if *offset != 0 {
                entry.push(OFFSET);
                push_varint(&mut entry, *offset);
            }
            answer.push(RESULT);
            push_varint(&mut answer, entry.len() as u64);
            answer.extend_from_slice(&entry);
        }
        answer
    }

    pub(super) fn messages<'a>(&self, request: &'a [u8]) -> Usual<Read<'a>> {
        let mut messages: Vec<Message<'a>> = Vec::new();
        let mut fields = Fields::new(request, 1);
        while let Some((number, value)) = fields.next()? {
            usual(number == 1 && messages.len() < self.limits.max_messages)?;
            let message = self.message(value.present()?)?;
            if let Some(first) = messages.first() {
                usual(message.topic == first.topic)?;
            }
            messages.push(message);
        }
        let first = messages.first().ok_or(Unusual)?;
        let topic = topic_names(first.topic)?;
        Ok((topic, messages))
    }

    fn message<'a>(&self, data: &'a [u8]) -> Usual<Message<'a>> {
        let mut message = Message::default();
        let mut properties = None;
        let mut names: Vec<&[u8]> = Vec::new();
        let mut size = 0;
        let mut fields = Fields::new(data, 2);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => message.topic = value.present()?,
                2 => size += self.user_property(value.present()?, &mut names)?,
                3 => properties = Some(value.present()?),
                4 => message.body = value.present()?,
                _ => return Err(Unusual),
            }
        }
        let own = properties.ok_or(Unusual)?;
        usual(!message.topic.is_empty() && !message.body.is_empty())?;
        usual(message.body.len() <= self.limits.max_body_bytes)?;
        message.properties = self.properties(own)?;
        message.own = own;
        // The system properties lie between what stays as it is.
        let own_end = own.as_ptr() as usize + own.len() - data.as_ptr() as usize;
        message.tail = &data[own_end..];
        message.head = &data[..own_end - own.len() - key_bytes(own.len())];
        size += message.properties.texts_size();
        usual(size <= self.limits.max_properties_bytes)?;
        let overhead = own.len() + message.head.len() + message.tail.len() - message.body.len();
        usual(overhead <= self.limits.max_overhead_bytes)?;
        Ok(message)
    }

    /// Check an entry of the user properties; return how many bytes its texts have.
    fn user_property<'a>(&self, entry: &'a [u8], names: &mut Vec<&'a [u8]>) -> Usual<usize> {
        let mut fields = Fields::new(entry, NONE);
        let (Some((1, name)), Some((2, value)), None) =
            (fields.next()?, fields.next()?, fields.next()?)
        else {
            return Err(Unusual);
        };
        let (name, value) = (plain(name.bytes()?)?, plain(value.bytes()?)?);
        usual(names.len() < self.limits.max_property_count && !self.reserved.contains(name))?;
        // A parser keeps the last of two entries.
        usual(!names.contains(&name))?;
        names.push(name);
        Ok(name.len() + value.len())
    }

    fn properties<'a>(&self, data: &'a [u8]) -> Usual<Properties<'a>> {
        let mut own = Properties::default();
        let mut fields = Fields::new(data, 2);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => own.tag = tag(value.bytes()?)?,
                2 => own.keys.push(named(value.bytes()?)?),
                3 => own.message_id = named(value.bytes()?)?,
                4 => digest(value.present()?)?,
                5 => own.has_encoding = small(value.nonzero()?)? != 0,
                6 => own.declared = small(value.nonzero()?)?,
                7 => own.born_ms = time_ms(value.bytes()?)?.0,
                8 => drop(utf8(value.present()?)?),
                11 => own.delivery_ms = Some(time_ms(value.bytes()?)?.1),
                13 => usual(value.nonzero()? <= i32::MAX as u64)?,
                14 => usual(value.number()? <= i64::MAX as u64)?,
                16 => usual(value.number()? <= i32::MAX as u64)?,
                17 => own.message_group = Some(self.group(value.bytes()?)?),
                18 => drop(utf8(value.bytes()?)?),
                _ => return Err(Unusual),
            }
        }
        usual(
            !own.message_id.is_empty() && own.message_id.len() <= self.limits.max_message_id_bytes,
        )?;
        usual(own.keys.len() <= self.limits.max_key_count)?;
        own.derive_type()?;
        Ok(own)
    }

    fn group<'a>(&self, text: &'a [u8]) -> Usual<&'a [u8]> {
        usual(text.len() < self.limits.max_message_group_bytes)?;
        named(text)
    }

    fn outgoing<'py>(
        &self,
        py: Python<'py>,
        message: &Message<'_>,
        sender: &[u8],
        digest: &Md5Digest,
        buffer: &mut Vec<u8>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = &message.properties;
        buffer.clear();
        self.write(message, sender, digest, buffer);
        let key_hashes = PyList::new(py, own.keys.iter().map(|key| key_hash(key)))?;
        let values = (
            PyBytes::new(py, buffer),
            crc32c::crc32c(buffer),
            if own.tag.is_empty() { 0 } else { key_hash(own.tag) },
            own.message_group.map_or(0, key_hash),
            PyBytes::new(py, &packed_id(own.message_id)),
            self.types[own.message_type].bind(py),
            own.born_ms,
            key_hashes,
            own.due_ms(),
        )
            .into_pyobject(py)?;
        self.new_tuple.bind(py).call1((self.outgoing_type.bind(py), values))
    }

    /// Append a message in the form of `wire.stored_message`.
    fn write(&self, message: &Message<'_>, sender: &[u8], digest: &Md5Digest, into: &mut Vec<u8>) {
        let (own, fragments) = (&message.properties, &self.fragments);
        let retyped = own.declared != own.message_type;
        let added = fragments.digest.len()
            + 32
            + if own.has_encoding { 0 } else { fragments.identity.len() }
            + if retyped { fragments.message_type.len() + 1 } else { 0 }
            + sender.len();
        into.extend_from_slice(&fragments.system_properties);
        push_varint(into, (message.own.len() + added) as u64);
        into.extend_from_slice(message.own);
        into.extend_from_slice(&fragments.digest);
        into.extend_from_slice(&upper_hex(digest));
        if !own.has_encoding {
            into.extend_from_slice(&fragments.identity);
        }
        if retyped {
            into.extend_from_slice(&fragments.message_type);
            push_varint(into, own.message_type as u64);
        }
        into.extend_from_slice(sender);
        into.extend_from_slice(message.head);
        into.extend_from_slice(message.tail);
        if let Some(group) = own.message_group {
            // The property's name, and the group as its value.
            let value = &fragments.message_group;
            let entry = value.len() + 1 + varint_bytes(group.len()) + group.len();
            into.extend_from_slice(&fragments.user_property);
            push_varint(into, entry as u64);
            into.extend_from_slice(value);
            into.push(0x12);
            push_varint(into, group.len() as u64);
            into.extend_from_slice(group);
        }
    }
}

/// Namespace and name of the topic, and the messages' ids.
type Named<'py> = (Bound<'py, PyString>, Bound<'py, PyString>, Bound<'py, PyList>);

/// Namespace and name of the topic, and the messages.
pub(super) type Read<'a> = ((&'a str, &'a str), Vec<Message<'a>>);

/// A message, and where its parts are in the request.
#[derive(Default)]
pub(super) struct Message<'a> {
    pub(super) topic: &'a [u8],
    body: &'a [u8],
    /// The system properties as they came.
    own: &'a [u8],
    /// Bytes before and behind them.
    head: &'a [u8],
    tail: &'a [u8],
    pub(super) properties: Properties<'a>,
}

#[derive(Default)]
pub(super) struct Properties<'a> {
    tag: &'a [u8],
    keys: Vec<&'a [u8]>,
    pub(super) message_id: &'a [u8],
    has_encoding: bool,
    declared: usize,
    pub(super) message_type: usize,
    born_ms: u64,
    /// Rounded up.
    delivery_ms: Option<u64>,
    message_group: Option<&'a [u8]>,
}

impl Properties<'_> {
    fn texts_size(&self) -> usize {
        self.tag.len() + self.keys.iter().map(|key| key.len()).sum::<usize>()
    }

    /// `message_type_of`, of the types that have no fields beyond those that are read.
    fn derive_type(&mut self) -> Usual<()> {
        self.message_type = if self.declared == TRANSACTION {
            usual(self.delivery_ms.is_none())?;
            TRANSACTION
        } else if self.delivery_ms.is_some() {
            DELAY
        } else if self.message_group.is_some() {
            FIFO
        } else {
            NORMAL
        };
        Ok(())
    }

    fn due_ms(&self) -> u64 {
        self.delivery_ms.unwrap_or(0)
    }
}

/// How many bytes the key and length of a message's system properties take.
fn key_bytes(size: usize) -> usize {
    1 + varint_bytes(size)
}

fn varint_bytes(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

pub(super) fn ascii<'py>(py: Python<'py>, text: &[u8]) -> Bound<'py, PyString> {
    // Plain texts only: nothing is replaced.
    PyString::new(py, &String::from_utf8_lossy(text))
}

fn tag(text: &[u8]) -> Usual<&[u8]> {
    if text.is_empty() {
        return Ok(text);
    }
    usual(!text.contains(&b'|'))?;
    named(text)
}

/// A Digest: a type and a text.
fn digest(data: &[u8]) -> Usual<()> {
    let mut fields = Fields::new(data, NONE);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => drop(small(value.nonzero()?)?),
            2 => drop(utf8(value.present()?)?),
            _ => return Err(Unusual),
        }
    }
    Ok(())
}

fn small(value: u64) -> Usual<usize> {
    usual(value <= MAX_ENUM).map(|()| value as usize)
}

/// A Timestamp in milliseconds, rounded down and up.
fn time_ms(data: &[u8]) -> Usual<(u64, u64)> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::new(data, NONE);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => seconds = value.nonzero()?,
            2 => nanos = value.nonzero()?,
            _ => return Err(Unusual),
        }
    }
    usual(seconds < MAX_SECONDS && nanos < NANOS_PER_S)?;
    Ok((seconds * 1000 + nanos / NANOS_PER_MS, seconds * 1000 + nanos.div_ceil(NANOS_PER_MS)))
}

/// Namespace and name of a topic.
fn topic_names(data: &[u8]) -> Usual<(&str, &str)> {
    let (mut namespace, mut name) = ("", "");
    let mut fields = Fields::new(data, NONE);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => namespace = utf8(value.present()?)?,
            2 => name = utf8(value.present()?)?,
            _ => return Err(Unusual),
        }
    }
    usual(!name.is_empty())?;
    Ok((namespace, name))
}
