//! The native half of the edge: HTTP/2, gRPC framing, TLS and their limits, on a thread of its own.
//!
//! Python's half is `strata_edge.native_edge`. The edge knows no rule of messages, and its thread
//! never takes the GIL: Python asks for batches (`Server.drain`) when an eventfd is readable.
//!
//! `codec` has passes over the bytes of hot calls, which run on the event loop's thread.

mod budgets;
mod calls;
mod codec;
mod connection;
mod edge;
mod facts;
mod frames;
mod frames_out;
mod guarded;
mod handover;
mod large;
mod locks;
mod messages;
mod options;
mod outcomes;
mod pace;
mod python;
mod server;
mod shared;
mod tls;

use pyo3::prelude::*;

#[pymodule]
fn strata_edge_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<python::Server>()?;
    module.add_class::<python::HotCall>()?;
    module.add_class::<python::CallInfo>()?;
    module.add_class::<codec::SendPass>()?;
    module.add_class::<codec::DeliveryPass>()?;
    module.add_class::<codec::ReceiptPass>()?;
    module.add_class::<codec::AckPass>()?;
    Ok(())
}
