"""Key-value tables in the log (RIP-22).

    decider (leader) --KV_WRITE entry--> machine (apply) --> rows, and an engine for the items

`client` and `aio` are what applications use; they import nothing of the rest but names.
"""
