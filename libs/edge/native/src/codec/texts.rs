//! Texts of a message: what is plain, and the hashes by which storage finds it.

use blake2::digest::consts::{U16, U8};
use blake2::{Blake2b, Digest};

use super::walk::{usual, Unusual, Usual};

pub const MESSAGE_ID_BYTES: usize = 17;
const OFFICIAL_DIGITS: usize = 2 * MESSAGE_ID_BYTES;

/// Printable ASCII; the twin looks closer at all other texts.
pub fn plain(text: &[u8]) -> Usual<&[u8]> {
    usual(text.iter().all(|byte| (0x20..0x7f).contains(byte))).map(|()| text)
}

/// Plain, and not empty or blank.
pub fn named(text: &[u8]) -> Usual<&[u8]> {
    plain(text)?;
    usual(text.iter().any(|byte| *byte != b' ')).map(|()| text)
}

pub fn utf8(text: &[u8]) -> Usual<&str> {
    std::str::from_utf8(text).map_err(|_| Unusual)
}

/// `hashing.key_hash`; `text_hash` is the same.
pub fn key_hash(text: &[u8]) -> u64 {
    let digest: [u8; 8] = Blake2b::<U8>::digest(text).into();
    u64::from_be_bytes(digest).max(1)
}

/// `hashing.pack_message_id`.
pub fn packed_id(text: &[u8]) -> [u8; MESSAGE_ID_BYTES] {
    official(text).unwrap_or_else(|| {
        let mut packed = [0; MESSAGE_ID_BYTES];
        packed[1..].copy_from_slice(&Blake2b::<U16>::digest(text));
        packed
    })
}

fn official(text: &[u8]) -> Option<[u8; MESSAGE_ID_BYTES]> {
    if text.len() != OFFICIAL_DIGITS || text.starts_with(b"00") {
        return None;
    }
    let mut packed = [0; MESSAGE_ID_BYTES];
    for (byte, digits) in packed.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(packed)
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'A'..=b'F' => Some(character - b'A' + 10),
        _ => None,
    }
}

pub fn upper_hex(bytes: &[u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}
