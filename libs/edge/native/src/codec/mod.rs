//! Passes over the bytes of hot calls: protobuf in, columns and stored bytes out.
//!
//! A pass has no rules of its own. It takes what a plain Python twin would take, and gives the same
//! bytes; on anything unusual it gives nothing, and the twin decides and says what is wrong. So a
//! text, a code and a limit are written once, in Python.

mod acks;
mod alike;
mod deliveries;
mod digests;
mod receipts;
mod sends;
mod texts;
mod walk;

pub use acks::AckPass;
pub use deliveries::DeliveryPass;
pub use receipts::ReceiptPass;
pub use sends::SendPass;
