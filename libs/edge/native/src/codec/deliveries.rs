//! Leased messages as responses of a receive; the twin is `strata_broker.receives.deliver`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::receipts::{Lease, Place, ReceiptForm, Signer, HANDLE_LENGTH, OWN_FIELDS_BYTES};
use super::walk::{push_varint, usual, Fields, Unusual, Usual, NONE};

const MS_PER_S: u64 = 1_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// Keys of what a delivery adds; the names are those of `DeliveryFragments`.
#[derive(FromPyObject)]
struct Fragments {
    store_timestamp: Vec<u8>,
    seconds: Vec<u8>,
    nanos: Vec<u8>,
    store_host: Vec<u8>,
    receipt_handle: Vec<u8>,
    queue: Vec<u8>,
    queue_offset: Vec<u8>,
    attempt: Vec<u8>,
    system_properties: Vec<u8>,
    message: Vec<u8>,
}

/// See the module's head; `strata_edge.passes` has the interface.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct DeliveryPass {
    form: ReceiptForm,
    fragments: Fragments,
}

#[pymethods]
impl DeliveryPass {
    #[new]
    fn new(form: ReceiptForm, fragments: Fragments) -> Self {
        Self { form, fragments }
    }

    /// Return (responses, leases, bytes and counts of first and later attempts), or None: the twin
    /// decides.
    fn deliver<'py>(
        &self,
        py: Python<'py>,
        popped: &[u8],
        place: (u32, u32, u32),
        store_host: &[u8],
        key: (u16, Vec<u8>),
    ) -> PyResult<Option<Delivered<'py>>> {
        let (raft_group, consumer_group_id, topic_id) = place;
        let place = Place { raft_group, consumer_group_id, topic_id };
        let Ok(signer) = Signer::new(&self.form, place, key.0, &key.1) else {
            return Ok(None);
        };
        let Ok(messages) = leased(popped) else {
            return Ok(None);
        };
        let mut writer = Writer::new(&self.fragments, store_host, signer);
        let mut own_fields = Vec::with_capacity(messages.len() * OWN_FIELDS_BYTES);
        let responses = PyList::empty(py);
        let (mut sizes, mut counts) = ((0, 0), (0, 0));
        for message in &messages {
            let Ok(response) = writer.response(message) else {
                return Ok(None);
            };
            responses.append(PyBytes::new(py, response))?;
            own_fields.extend_from_slice(writer.signer.own_fields());
            if message.attempt > 1 {
                sizes.1 += message.stored.len();
                counts.1 += 1;
            } else {
                sizes.0 += message.stored.len();
                counts.0 += 1;
            }
        }
        Ok(Some((responses, PyBytes::new(py, &own_fields), sizes, counts)))
    }
}

type Delivered<'py> = (Bound<'py, PyList>, Bound<'py, PyBytes>, (usize, usize), (usize, usize));

/// A LeasedMessage.
struct Leased<'a> {
    lease: Lease,
    attempt: u64,
    store_time_ms: u64,
    stored: &'a [u8],
}

/// Read the messages of a PopResponse.
fn leased(popped: &[u8]) -> Usual<Vec<Leased<'_>>> {
    let mut messages = Vec::new();
    let mut fields = Fields::new(popped, 2);
    while let Some((number, value)) = fields.next()? {
        if number == 2 {
            messages.push(leased_message(value.bytes()?)?);
        }
    }
    Ok(messages)
}

fn leased_message(data: &[u8]) -> Usual<Leased<'_>> {
    let mut numbers = [0; 8];
    let mut stored: &[u8] = &[];
    let mut fields = Fields::new(data, NONE);
    while let Some((number, value)) = fields.next()? {
        match number {
            1..=7 => numbers[number as usize] = value.nonzero()?,
            8 => stored = value.present()?,
            9 => drop(value.number()?),
            _ => return Err(Unusual),
        }
    }
    let [_, queue, offset, attempt, lease_number, generation, visible_at_ms, store_time_ms] =
        numbers;
    let lease = Lease {
        queue: short(queue)?,
        offset,
        lease_number: short(lease_number)?,
        generation: short(generation)?,
        visible_at_ms,
    };
    Ok(Leased { lease, attempt, store_time_ms, stored })
}

fn short(value: u64) -> Usual<u32> {
    u32::try_from(value).map_err(|_| Unusual)
}

/// Writes the responses of one answer.
struct Writer<'a> {
    fragments: &'a Fragments,
    store_host: &'a [u8],
    signer: Signer,
    /// The bytes before the handle, for messages of one store time.
    head: Vec<u8>,
    head_of_ms: Option<u64>,
    added: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(fragments: &'a Fragments, store_host: &'a [u8], signer: Signer) -> Self {
        Self {
            fragments,
            store_host,
            signer,
            head: Vec::new(),
            head_of_ms: None,
            added: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Return a ReceiveMessageResponse, as `wire.received_message` makes it.
    fn response(&mut self, message: &Leased<'_>) -> Usual<&[u8]> {
        let (properties, rest) = self.split(message.stored)?;
        self.add(message);
        let (added, fragments, into) = (&self.added, self.fragments, &mut self.buffer);
        into.clear();
        into.extend_from_slice(&fragments.system_properties);
        push_varint(into, (properties.len() + added.len()) as u64);
        let size = into.len() + properties.len() + added.len() + rest.len();
        into.clear();
        into.extend_from_slice(&fragments.message);
        push_varint(into, size as u64);
        into.extend_from_slice(&fragments.system_properties);
        push_varint(into, (properties.len() + added.len()) as u64);
        into.extend_from_slice(properties);
        into.extend_from_slice(added);
        into.extend_from_slice(rest);
        Ok(into)
    }

    /// Return the system properties of a stored message, its first field, and what follows them.
    fn split<'m>(&self, stored: &'m [u8]) -> Usual<(&'m [u8], &'m [u8])> {
        let key = &self.fragments.system_properties;
        let mut at = key.len();
        usual(stored.starts_with(key))?;
        let mut length = 0;
        for shift in (0..28).step_by(7) {
            let byte = *stored.get(at).ok_or(Unusual)?;
            at += 1;
            length |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                usual(length <= stored.len() - at)?;
                return Ok(stored[at..].split_at(length));
            }
        }
        Err(Unusual)
    }

    /// Write what this delivery adds to the system properties.
    fn add(&mut self, message: &Leased<'_>) {
        if self.head_of_ms != Some(message.store_time_ms) {
            self.begin(message.store_time_ms);
        }
        let handle = self.signer.text(&message.lease);
        let (fragments, added) = (self.fragments, &mut self.added);
        added.clear();
        added.extend_from_slice(&self.head);
        added.extend_from_slice(&handle);
        added.extend_from_slice(&fragments.queue);
        push_varint(added, u64::from(message.lease.queue));
        added.extend_from_slice(&fragments.queue_offset);
        push_varint(added, message.lease.offset);
        added.extend_from_slice(&fragments.attempt);
        push_varint(added, message.attempt);
    }

    fn begin(&mut self, store_time_ms: u64) {
        let (fragments, head) = (self.fragments, &mut self.head);
        let mut timestamp = fragments.seconds.clone();
        push_varint(&mut timestamp, store_time_ms / MS_PER_S);
        timestamp.extend_from_slice(&fragments.nanos);
        push_varint(&mut timestamp, store_time_ms % MS_PER_S * NANOS_PER_MS);
        head.clear();
        head.extend_from_slice(&fragments.store_timestamp);
        push_varint(head, timestamp.len() as u64);
        head.extend_from_slice(&timestamp);
        head.extend_from_slice(&fragments.store_host);
        push_varint(head, self.store_host.len() as u64);
        head.extend_from_slice(self.store_host);
        head.extend_from_slice(&fragments.receipt_handle);
        push_varint(head, HANDLE_LENGTH as u64);
        self.head_of_ms = Some(store_time_ms);
    }
}
