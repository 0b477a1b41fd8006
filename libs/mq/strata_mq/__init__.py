"""Semantics of a message queue. Pure: values in, values out; no clock, no I/O, no randomness.

Reading order: `errors` and `types` (words of the protocol); `validation`, `names`, `filters` and
`retry` (what a request may say); `hashing` and `slots` (where a message goes); `batch`, `commands`,
`rare_commands` and `rows` (bytes, as in docs/data-layout.md); `leases` (who holds which message);
`handle` and `delivery` (what a client gets); `group_time` (when).
"""
