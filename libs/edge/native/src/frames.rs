//! Cost of a client's frames, read from the frame headers chunk by chunk (client_frames.py).
//!
//! Most calls are HEADERS and one DATA frame that ends the request: nothing is kept for them.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::options::Guard;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const SMALL_HEADERS_BYTES: usize = 1 << 10;
const SMALL_MESSAGE_BYTES: u64 = 1 << 10;
const MAX_LATE: usize = 4_096;

/// Where a stream stands in its messages.
#[derive(Default)]
struct Message {
    count: u64,
    left: u64,
    prefix: [u8; 5],
    prefix_bytes: usize,
}

/// Follows what a client sends, from its first byte on.
pub struct ClientFrames {
    limits: Guard,
    /// Cost of frames that are no requests; the reader sets it back.
    pub cost_s: f64,
    /// Why the connection cannot go on.
    pub fault: Option<&'static str>,
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    left: usize,
    /// The stream whose DATA frame goes on in the next bytes.
    current: Option<u32>,
    block_bytes: u64,
    requests: HashMap<u32, Message>,
    late: Late,
}

/// Streams that the server ended before their requests, the last of them: what the client still
/// says there is late, and no fault of its.
#[derive(Default)]
struct Late {
    streams: HashSet<u32>,
    order: VecDeque<u32>,
}

impl Late {
    fn add(&mut self, stream: u32) {
        if self.streams.insert(stream) {
            self.order.push_back(stream);
        }
        if self.order.len() > MAX_LATE {
            if let Some(oldest) = self.order.pop_front() {
                self.streams.remove(&oldest);
            }
        }
    }
}

impl ClientFrames {
    pub fn new(limits: Guard) -> Self {
        Self {
            limits,
            cost_s: 0.0,
            fault: None,
            head: [0; HEADER_BYTES],
            head_bytes: 0,
            left: PREFACE_BYTES,
            current: None,
            block_bytes: 0,
            requests: HashMap::new(),
            late: Late::default(),
        }
    }

    /// The server has ended a stream whose request goes on.
    pub fn leave(&mut self, stream: u32) {
        self.late.add(stream);
        self.forget(stream);
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u32) {
        self.requests.remove(&stream);
        if self.current == Some(stream) {
            self.current = None;
        }
    }

    /// Take in the next chunk.
    pub fn pass_over(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let (piece, rest) = data.split_at(self.left.min(data.len()));
                if let Some(stream) = self.current {
                    self.read(stream, piece);
                }
                self.left -= piece.len();
                data = rest;
                continue;
            }
            self.current = None;
            let lacking = HEADER_BYTES - self.head_bytes;
            let (piece, rest) = data.split_at(lacking.min(data.len()));
            self.head[self.head_bytes..self.head_bytes + piece.len()].copy_from_slice(piece);
            self.head_bytes += piece.len();
            data = rest;
            if self.head_bytes == HEADER_BYTES {
                self.head_bytes = 0;
                self.begin_frame();
            }
        }
    }

    fn begin_frame(&mut self) {
        let head = self.head;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        self.left = length;
        if kind == DATA {
            if !self.requests.is_empty() || flags & END_STREAM == 0 {
                self.data(stream, flags, length);
            }
        } else if kind != WINDOW_UPDATE
            && !(kind == HEADERS && flags & END_HEADERS != 0 && length <= SMALL_HEADERS_BYTES)
        {
            self.other(kind, flags, stream, length);
        }
    }

    fn data(&mut self, stream: u32, flags: u8, length: usize) {
        if flags & END_STREAM != 0 {
            self.requests.remove(&stream);
            return;
        }
        if length == 0 {
            self.cost_s += self.limits.control_cost_s;
        }
        if self.late.streams.contains(&stream) {
            return;
        }
        self.requests.entry(stream).or_default();
        if self.requests.len() as u64 > self.limits.max_unfinished_requests {
            self.fault = Some("requests");
        }
        self.current = Some(stream);
    }

    /// Follow the messages of a stream through a piece of its data.
    fn read(&mut self, stream: u32, mut piece: &[u8]) {
        let Some(message) = self.requests.get_mut(&stream) else { return };
        while !piece.is_empty() {
            if message.left > 0 {
                let step = message.left.min(piece.len() as u64) as usize;
                message.left -= step as u64;
                piece = &piece[step..];
                continue;
            }
            let step = (5 - message.prefix_bytes).min(piece.len());
            message.prefix[message.prefix_bytes..message.prefix_bytes + step]
                .copy_from_slice(&piece[..step]);
            message.prefix_bytes += step;
            piece = &piece[step..];
            if message.prefix_bytes == 5 {
                let [_, a, b, c, d] = message.prefix;
                message.left = u64::from(u32::from_be_bytes([a, b, c, d]));
                message.prefix_bytes = 0;
                // The first is the request of a call; others are a talk, or a flood.
                if message.left < SMALL_MESSAGE_BYTES && message.count > 0 {
                    self.cost_s += self.limits.control_cost_s;
                }
                message.count += 1;
            }
        }
    }

    fn other(&mut self, kind: u8, flags: u8, stream: u32, length: usize) {
        if kind == HEADERS || kind == CONTINUATION {
            let before = if kind == CONTINUATION { self.block_bytes } else { 0 };
            self.block_bytes = before + length as u64;
            self.cost_s += length as f64 * self.limits.header_byte_cost_s;
            if self.block_bytes > self.limits.max_header_bytes {
                self.fault = Some("headers");
            }
            if flags & END_HEADERS == 0 {
                self.cost_s += self.limits.control_cost_s;
            }
        } else if kind == RST_STREAM {
            // A client that answers the end of a call with a reset did not begin.
            if self.late.streams.remove(&stream) {
                return;
            }
            self.cost_s += self.limits.reset_cost_s;
            self.requests.remove(&stream);
        } else if flags & ACK == 0 {
            self.cost_s += self.limits.control_cost_s;
        }
    }
}

/// Finds the resets in what the server sends that its client has brought about.
///
/// A call whose time is over, a stream beyond the limit, or late data of a stream that the server
/// has ended is answered by a reset, too: these cost the client nothing.
#[derive(Default)]
pub struct ServerFrames {
    head: [u8; HEADER_BYTES + CODE_BYTES],
    head_bytes: usize,
    left: usize,
}

const CODE_BYTES: usize = 4;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;

impl ServerFrames {
    /// Take in the next chunk; return how many such resets begin or end in it.
    pub fn resets_in(&mut self, mut data: &[u8]) -> u32 {
        let mut resets = 0;
        while !data.is_empty() {
            if self.left > 0 {
                let step = self.left.min(data.len());
                self.left -= step;
                data = &data[step..];
                continue;
            }
            let is_reset = self.head_bytes >= HEADER_BYTES;
            let whole = if is_reset { HEADER_BYTES + CODE_BYTES } else { HEADER_BYTES };
            let (piece, rest) = data.split_at((whole - self.head_bytes).min(data.len()));
            self.head[self.head_bytes..self.head_bytes + piece.len()].copy_from_slice(piece);
            self.head_bytes += piece.len();
            data = rest;
            if self.head_bytes < whole {
                break;
            }
            let head = self.head;
            if is_reset {
                let code = u32::from_be_bytes([head[9], head[10], head[11], head[12]]);
                if matches!(code, PROTOCOL_ERROR | FLOW_CONTROL_ERROR | FRAME_SIZE_ERROR) {
                    resets += 1;
                }
                self.head_bytes = 0;
            } else if head[3] != RST_STREAM {
                self.left =
                    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                self.head_bytes = 0;
            }
        }
        resets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> ClientFrames {
        let mut frames = ClientFrames::new(Guard {
            large_request_bytes: 65_536,
            max_header_bytes: 1_000,
            max_unfinished_requests: 2,
            reset_cost_s: 1.0,
            control_cost_s: 0.1,
            header_byte_cost_s: 0.001,
            control_credit_s: 1.0,
            max_control_pause_s: 1.0,
            control_grace_s: 0.5,
            control_connections_per_address: 2.0,
            resets_at_once: 10,
        });
        frames.pass_over(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frames
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn a_call_costs_nothing_however_it_is_cut() {
        let mut call = frame(HEADERS, END_HEADERS, 1, &[0; 50]);
        call.extend(frame(DATA, 0, 1, &[0, 0, 0, 0, 3, 7]));
        call.extend(frame(DATA, END_STREAM, 1, &[8, 9]));
        for size in 1..call.len() {
            let mut frames = frames();
            for piece in call.chunks(size) {
                frames.pass_over(piece);
            }
            assert_eq!((frames.cost_s, frames.fault, frames.requests.len()), (0.0, None, 0));
        }
    }

    #[test]
    fn floods_cost_or_end() {
        let mut frames = frames();
        frames.pass_over(&frame(RST_STREAM, 0, 1, &[0; 4]));
        frames.pass_over(&frame(6, 0, 0, &[0; 8]));
        frames.pass_over(&frame(DATA, 0, 3, &[]));
        assert!((frames.cost_s - 1.2).abs() < 1e-9);
        frames.pass_over(&frame(6, ACK, 0, &[0; 8]));
        assert!((frames.cost_s - 1.2).abs() < 1e-9);
        frames.pass_over(&frame(HEADERS, 0, 5, &[0; 600]));
        assert_eq!(frames.fault, None);
        frames.pass_over(&frame(CONTINUATION, 0, 5, &[0; 600]));
        assert_eq!(frames.fault, Some("headers"));
    }

    #[test]
    fn what_comes_late_costs_nothing() {
        let mut frames = frames();
        let begun = [0, 0, 0, 0, 200, 7];
        frames.pass_over(&frame(DATA, 0, 1, &begun));
        frames.leave(1);
        for _ in 0..100 {
            frames.pass_over(&frame(DATA, 0, 1, &[0; 50]));
        }
        frames.pass_over(&frame(RST_STREAM, 0, 1, &[0; 4]));
        assert_eq!((frames.cost_s, frames.requests.len()), (0.0, 0));
        frames.pass_over(&frame(RST_STREAM, 0, 1, &[0; 4]));
        assert_eq!(frames.cost_s, 1.0);
        for stream in 0..2 * MAX_LATE as u32 {
            frames.leave(stream);
        }
        assert_eq!((frames.late.streams.len(), frames.late.order.len()), (MAX_LATE, MAX_LATE));
    }

    #[test]
    fn resets_that_the_client_brought_about() {
        let mut sent = frame(4, 0, 0, &[0; 12]);
        for code in [0u32, 1, 3, 5, 7, 8] {
            sent.extend(frame(DATA, 0, 1, &[RST_STREAM; 30]));
            sent.extend(frame(RST_STREAM, 0, 1, &code.to_be_bytes()));
        }
        for size in 1..sent.len() {
            let mut frames = ServerFrames::default();
            let resets: u32 = sent.chunks(size).map(|piece| frames.resets_in(piece)).sum();
            assert_eq!(resets, 2, "in pieces of {size}");
        }
    }

    #[test]
    fn small_messages_of_a_talk_cost() {
        let mut frames = frames();
        let message = [0, 0, 0, 0, 1, 7];
        frames.pass_over(&frame(DATA, 0, 1, &message));
        assert_eq!(frames.cost_s, 0.0);
        frames.pass_over(&frame(DATA, 0, 1, &message));
        assert!(frames.cost_s > 0.0);
    }
}
