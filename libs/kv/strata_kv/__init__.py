"""Key-value tables in the log (RIP-22).

    decider (leader) --KV_WRITE entry--> machine (apply) --> rows, and an engine for the items

Applications use `client` and `aio`, which import only names from the other modules.
"""
