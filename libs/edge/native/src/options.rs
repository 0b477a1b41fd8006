//! Limits and methods of an edge, as Python's `EdgeOptions` has them.

use std::collections::HashMap;
use std::time::Duration;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::large::Shares;
use crate::pace::LeastRate;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    HotUnary(u8),
    HotStream(u8),
    Unary,
    ServerStream,
    Talk,
}

#[derive(Clone)]
pub struct Route {
    pub index: u32,
    pub kind: Kind,
    pub max_request_bytes: u64,
    pub max_time: Duration,
}

pub type Routes = HashMap<String, Route>;

#[derive(Clone)]
pub struct Options {
    pub tls: bool,
    pub tls_only: bool,
    /// Whether connections of another protocol are given to Python (handover.rs).
    pub hands_over: bool,
    pub max_connections: u64,
    pub max_connections_per_address: u64,
    pub handshake_timeout: Duration,
    pub max_hot_calls: u64,
    pub max_rare_calls: u64,
    pub max_calls_per_address: u64,
    pub max_unread_bytes: u64,
    pub max_unread_bytes_per_address: u64,
    pub max_unread_bytes_per_connection: u64,
    pub unread_reserve_bytes: u64,
    /// The least rate of a client that has answers to read while there is no room for others.
    pub least_read: LeastRate,
    pub max_streams_per_connection: u32,
    pub slow_upload: Duration,
    pub max_upload: Duration,
    pub max_slow_uploads: u64,
    pub max_slow_uploads_per_address: u64,
    pub large_requests: Shares,
    /// The least rate of a client that sends large requests while others wait for their room.
    pub least_upload: LeastRate,
    pub max_metadata_bytes: u32,
    pub send_buffer_bytes: u32,
    pub guard: Guard,
}

/// Limits of the frames that a connection may send beside its calls (guard_limits.py).
#[derive(Clone)]
pub struct Guard {
    pub large_request_bytes: u64,
    pub max_header_bytes: u64,
    pub max_unfinished_requests: u64,
    pub reset_cost_s: f64,
    pub control_cost_s: f64,
    pub header_byte_cost_s: f64,
    pub control_credit_s: f64,
    pub max_control_pause_s: f64,
    pub control_grace_s: f64,
    pub control_connections_per_address: f64,
    pub resets_at_once: u64,
}

impl Options {
    pub fn from_python(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let number = |name: &str| -> PyResult<u64> {
            let value =
                given.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
            value.extract()
        };
        let ms = |name: &str| -> PyResult<Duration> { Ok(Duration::from_millis(number(name)?)) };
        let seconds = |name: &str| -> PyResult<f64> { Ok(number(name)? as f64 / 1_000.0) };
        let rate = |name: &str| -> PyResult<f64> { Ok(1.0 / number(name)? as f64) };
        let resets_per_s = number("max_resets_per_s")? as f64;
        Ok(Self {
            tls: number("tls")? != 0,
            tls_only: number("tls_only")? != 0,
            hands_over: false,
            max_connections: number("max_connections")?,
            max_connections_per_address: number("max_connections_per_address")?,
            handshake_timeout: ms("handshake_timeout_ms")?,
            max_hot_calls: number("max_hot_calls")?,
            max_rare_calls: number("max_rare_calls")?,
            max_calls_per_address: number("max_calls_per_address")?,
            max_unread_bytes: number("max_unread_bytes")?,
            max_unread_bytes_per_address: number("max_unread_bytes_per_address")?,
            max_unread_bytes_per_connection: number("max_unread_bytes_per_connection")?,
            unread_reserve_bytes: number("unread_reserve_bytes")?,
            least_read: LeastRate {
                window: ms("max_read_pause_ms")?,
                bytes_per_s: number("min_read_bytes_per_s")?,
            },
            max_streams_per_connection: number("max_streams_per_connection")? as u32,
            slow_upload: ms("slow_upload_ms")?,
            max_upload: ms("max_upload_ms")?,
            max_slow_uploads: number("max_slow_uploads")?,
            max_slow_uploads_per_address: number("max_slow_uploads_per_address")?,
            large_requests: Shares {
                total: number("max_large_request_bytes")?,
                per_address: number("max_large_request_bytes_per_address")?,
                per_connection: number("max_large_request_bytes_per_connection")?,
            },
            least_upload: LeastRate {
                window: ms("max_request_pause_ms")?,
                bytes_per_s: number("min_upload_bytes_per_s")?,
            },
            max_metadata_bytes: number("max_metadata_bytes")? as u32,
            send_buffer_bytes: number("relay_buffer_bytes")? as u32,
            guard: Guard {
                large_request_bytes: number("large_request_bytes")?,
                max_header_bytes: number("max_header_bytes")?,
                max_unfinished_requests: number("max_unfinished_requests")?,
                reset_cost_s: rate("max_resets_per_s")?,
                control_cost_s: rate("max_control_frames_per_s")?,
                header_byte_cost_s: rate("max_header_bytes_per_s")?,
                control_credit_s: seconds("control_credit_ms")?,
                max_control_pause_s: seconds("max_control_pause_ms")?,
                control_grace_s: seconds("control_grace_ms")?,
                control_connections_per_address: number("control_connections_per_address")? as f64,
                resets_at_once: (resets_per_s * seconds("control_credit_ms")?) as u64,
            },
        })
    }
}
