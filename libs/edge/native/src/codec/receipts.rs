//! Receipt handles that the cluster signed; the twin is `strata_mq.requests.handle`.
//!
//! A handle is 51 bytes as 68 characters of base64: version and flags, the fields of a lease, the
//! id of a key, a tag. Handles of every other form are left to the twin.

use blake2::digest::consts::U8;
use blake2::digest::{FixedOutput, Update};
use blake2::Blake2sMac;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::walk::{push_varint, usual, Unusual, Usual};

const FIELDS_BYTES: usize = 41;
const KEY_ID_BYTES: usize = 2;
const SIGNED_BYTES: usize = FIELDS_BYTES + KEY_ID_BYTES;
const TAG_BYTES: usize = 8;
const HANDLE_BYTES: usize = SIGNED_BYTES + TAG_BYTES;
pub const HANDLE_LENGTH: usize = HANDLE_BYTES / 3 * 4;
/// Where the fields of a lease begin that its place does not say: queue, offset, numbers, time.
const OWN_FIELDS_AT: usize = 13;
pub const OWN_FIELDS_BYTES: usize = FIELDS_BYTES - OWN_FIELDS_AT;

const _: () = assert!(HANDLE_BYTES % 3 == 0, "base64 of a handle needs no padding");

/// `GroupLeases.leases`.
const LEASES_KEY: u8 = 0x12;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const NO_DIGIT: u8 = 0xff;
const VALUES: [u8; 256] = values();

const fn values() -> [u8; 256] {
    let mut values = [NO_DIGIT; 256];
    let mut at = 0;
    while at < DIGITS.len() {
        values[DIGITS[at] as usize] = at as u8;
        at += 1;
    }
    values
}

/// How a signed handle is written; the names are those of `ReceiptForm`.
#[derive(FromPyObject)]
pub struct ReceiptForm {
    version: u8,
    auto_renewed: u8,
    person: Vec<u8>,
}

/// The raft group, consumer group and topic of leases.
#[derive(Clone, Copy)]
pub struct Place {
    pub raft_group: u32,
    pub consumer_group_id: u32,
    pub topic_id: u32,
}

/// The fields of a lease that its place does not say.
#[derive(Clone, Copy)]
pub struct Lease {
    pub queue: u32,
    pub offset: u64,
    pub lease_number: u32,
    pub generation: u32,
    pub visible_at_ms: u64,
}

/// A key of the cluster, ready to tag handles.
pub struct Key {
    id: [u8; KEY_ID_BYTES],
    keyed: Blake2sMac<U8>,
}

impl Key {
    fn new(form: &ReceiptForm, id: u16, secret: &[u8]) -> Usual<Self> {
        let keyed = Blake2sMac::new_with_salt_and_personal(secret, &[], &form.person)
            .map_err(|_| Unusual)?;
        Ok(Self { id: id.to_be_bytes(), keyed })
    }

    fn tag(&self, signed: &[u8]) -> [u8; TAG_BYTES] {
        let mut tagged = self.keyed.clone();
        tagged.update(signed);
        tagged.finalize_fixed().into()
    }
}

/// Writes the handles of one answer.
pub struct Signer {
    raw: [u8; HANDLE_BYTES],
    version: u8,
    auto_renewed: u8,
    key: Key,
}

impl Signer {
    pub fn new(form: &ReceiptForm, place: Place, key_id: u16, secret: &[u8]) -> Usual<Self> {
        let key = Key::new(form, key_id, secret)?;
        let mut raw = [0; HANDLE_BYTES];
        raw[1..5].copy_from_slice(&place.raft_group.to_be_bytes());
        raw[5..9].copy_from_slice(&place.consumer_group_id.to_be_bytes());
        raw[9..OWN_FIELDS_AT].copy_from_slice(&place.topic_id.to_be_bytes());
        raw[FIELDS_BYTES..SIGNED_BYTES].copy_from_slice(&key.id);
        Ok(Self { raw, version: form.version << 4, auto_renewed: form.auto_renewed, key })
    }

    /// Return the text of a lease's handle.
    pub fn text(&mut self, lease: &Lease) -> [u8; HANDLE_LENGTH] {
        let renewed = if lease.visible_at_ms == 0 { self.auto_renewed } else { 0 };
        let raw = &mut self.raw;
        raw[0] = self.version | renewed;
        raw[13..17].copy_from_slice(&lease.queue.to_be_bytes());
        raw[17..25].copy_from_slice(&lease.offset.to_be_bytes());
        raw[25..29].copy_from_slice(&lease.lease_number.to_be_bytes());
        raw[29..33].copy_from_slice(&lease.generation.to_be_bytes());
        raw[33..FIELDS_BYTES].copy_from_slice(&lease.visible_at_ms.to_be_bytes());
        let tag = self.key.tag(&raw[..SIGNED_BYTES]);
        raw[SIGNED_BYTES..].copy_from_slice(&tag);
        to_text(raw)
    }

    /// The lease's own fields in the handle that was written last.
    pub fn own_fields(&self) -> &[u8] {
        &self.raw[OWN_FIELDS_AT..FIELDS_BYTES]
    }
}

/// See the module's head; `strata_edge.passes` has the interface.
#[pyclass(frozen, module = "strata_edge_native")]
pub struct ReceiptPass {
    form: ReceiptForm,
}

#[pymethods]
impl ReceiptPass {
    #[new]
    fn new(form: ReceiptForm) -> Self {
        Self { form }
    }

    /// Return (raft group, lease) of each handle, or None: the twin decides.
    fn read<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        keys: Vec<(u16, Vec<u8>)>,
        consumer_group_id: u32,
        topic_id: u32,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut valid = Vec::with_capacity(keys.len());
        for (id, secret) in &keys {
            let Ok(key) = Key::new(&self.form, *id, secret) else {
                return Ok(None);
            };
            valid.push(key);
        }
        let leases = PyList::empty(py);
        let mut buffer = Vec::new();
        for text in texts {
            let text = text.cast::<PyString>()?.to_str()?;
            let Ok((place, lease)) = self.lease(text.as_bytes(), &valid) else {
                return Ok(None);
            };
            if place.consumer_group_id != consumer_group_id || place.topic_id != topic_id {
                return Ok(None);
            }
            write_lease(&place, &lease, &mut buffer);
            leases.append((place.raft_group, PyBytes::new(py, &buffer)))?;
        }
        Ok(Some(leases))
    }
}

impl ReceiptPass {
    fn lease(&self, text: &[u8], keys: &[Key]) -> Usual<(Place, Lease)> {
        let raw = from_text(text)?;
        let key_id = &raw[FIELDS_BYTES..SIGNED_BYTES];
        let key = keys.iter().find(|key| key.id == key_id).ok_or(Unusual)?;
        let tag = key.tag(&raw[..SIGNED_BYTES]);
        // It takes as long wherever the first wrong byte is.
        let wrong = tag.iter().zip(&raw[SIGNED_BYTES..]).fold(0, |all, (a, b)| all | (a ^ b));
        usual(wrong == 0 && raw[0] >> 4 == self.form.version)?;
        let place = Place {
            raft_group: u32_at(&raw, 1),
            consumer_group_id: u32_at(&raw, 5),
            topic_id: u32_at(&raw, 9),
        };
        let lease = Lease {
            queue: u32_at(&raw, 13),
            offset: u64_at(&raw, 17),
            lease_number: u32_at(&raw, 25),
            generation: u32_at(&raw, 29),
            visible_at_ms: u64_at(&raw, 33),
        };
        Ok((place, lease))
    }
}

/// Write a `LeaseRef` as a field of GroupLeases; a serialiser leaves zeros out.
fn write_lease(place: &Place, lease: &Lease, into: &mut Vec<u8>) {
    into.clear();
    // Its length, one byte, comes last.
    into.extend_from_slice(&[LEASES_KEY, 0]);
    let fields = [
        u64::from(place.consumer_group_id),
        u64::from(place.topic_id),
        u64::from(lease.queue),
        lease.offset,
        u64::from(lease.lease_number),
        u64::from(lease.generation),
        lease.visible_at_ms,
    ];
    for (at, value) in fields.into_iter().enumerate() {
        if value != 0 {
            into.push((at as u8 + 1) << 3);
            push_varint(into, value);
        }
    }
    into[1] = (into.len() - 2) as u8;
}

fn to_text(raw: &[u8; HANDLE_BYTES]) -> [u8; HANDLE_LENGTH] {
    let mut text = [0; HANDLE_LENGTH];
    for (digits, bytes) in text.chunks_exact_mut(4).zip(raw.chunks_exact(3)) {
        let bits = u32::from(bytes[0]) << 16 | u32::from(bytes[1]) << 8 | u32::from(bytes[2]);
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
        }
    }
    text
}

fn from_text(text: &[u8]) -> Usual<[u8; HANDLE_BYTES]> {
    usual(text.len() == HANDLE_LENGTH)?;
    let mut raw = [0; HANDLE_BYTES];
    for (bytes, digits) in raw.chunks_exact_mut(3).zip(text.chunks_exact(4)) {
        let mut bits = 0;
        for digit in digits {
            let value = VALUES[usize::from(*digit)];
            usual(value != NO_DIGIT)?;
            bits = bits << 6 | u32::from(value);
        }
        bytes.copy_from_slice(&bits.to_be_bytes()[1..]);
    }
    Ok(raw)
}

fn u32_at(raw: &[u8; HANDLE_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; HANDLE_BYTES], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) << 32 | u64::from(u32_at(raw, at + 4))
}
