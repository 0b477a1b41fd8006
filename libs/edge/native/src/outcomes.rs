//! How calls end: statuses of gRPC, and ends without an answer.

pub const OK: u8 = 0;
pub const DEADLINE_EXCEEDED: u8 = 4;
pub const INVALID_ARGUMENT: u8 = 3;
pub const RESOURCE_EXHAUSTED: u8 = 8;
pub const UNIMPLEMENTED: u8 = 12;
pub const INTERNAL: u8 = 13;
pub const MISTAKE: &str = "the server failed at this call because of a bug";

/// Why a call ends without its answer.
pub enum End {
    /// The client has gone, or its connection.
    Gone,
    Status(u8, String),
}

pub type Outcome<T> = Result<T, End>;
