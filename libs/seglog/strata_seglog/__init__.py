"""A CommitLog shared by many raft groups.

Read in this order: `frames.py` (one frame), `log.py` (writing), `reader.py` (reading), `index.py`
(rule 9: which entries supersede others), `recovery.py` (rule 7: where the log ends), `retention.py`
and `scrub.py` (upkeep). `ports.py` is the port of a disk.
"""
