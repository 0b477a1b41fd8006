//! Messages between Python's bytes and gRPC's frames.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Responses as they go out: each with its prefix; and how many bytes they have themselves.
///
/// Small ones are copied together, so that an answer is one write; large ones stay where they are.
pub fn framed(responses: &Bound<'_, PyAny>) -> PyResult<(Vec<Bytes>, u64)> {
    const COPIED_BYTES: usize = 32 << 10;
    let mut frames = Vec::new();
    let mut buffer = Vec::new();
    let mut size = 0;
    for response in responses.try_iter()? {
        let response = response?.cast_into::<PyBytes>()?;
        let data = response.as_bytes();
        size += data.len() as u64;
        if frames.is_empty() && buffer.is_empty() {
            buffer.reserve_exact(5 + data.len().min(COPIED_BYTES));
        }
        buffer.push(0);
        buffer.extend_from_slice(&(data.len() as u32).to_be_bytes());
        if data.len() <= COPIED_BYTES {
            buffer.extend_from_slice(data);
        } else {
            frames.push(Bytes::from(std::mem::take(&mut buffer)));
            frames.push(Bytes::from_owner(Kept::new(response)));
        }
    }
    if !buffer.is_empty() {
        frames.push(Bytes::from(buffer));
    }
    Ok((frames, size))
}

/// Bytes of Python that another thread reads: they never change, and live while this does.
///
/// PyO3 gives the reference back when the GIL is held the next time.
struct Kept {
    data: *const u8,
    size: usize,
    _owner: Py<PyBytes>,
}

impl Kept {
    fn new(owner: Bound<'_, PyBytes>) -> Self {
        let data = owner.as_bytes();
        Self { data: data.as_ptr(), size: data.len(), _owner: owner.unbind() }
    }
}

// SAFETY: a bytes object is immutable and does not move; `Py` itself may change threads.
unsafe impl Send for Kept {}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `_owner` keeps the object alive, see above.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }
}

/// Pieces of a request as one bytes object; its only copy.
pub fn joined(py: Python<'_>, pieces: &[Bytes]) -> PyResult<Py<PyBytes>> {
    if let [piece] = pieces {
        return Ok(PyBytes::new(py, piece).unbind());
    }
    let size = pieces.iter().map(Bytes::len).sum();
    let made = PyBytes::new_with(py, size, |mut target| {
        for piece in pieces {
            let (here, rest) = target.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            target = rest;
        }
        Ok(())
    })?;
    Ok(made.unbind())
}
