"""A CommitLog shared by many raft groups.

Read in this order: `frames.py` (one frame), `log.py` (writing), `reader.py` (reading),
`index.py` (rule 9: what supersedes what), `recovery.py` (rule 7: where the log ends),
`retention.py` and `scrub.py` (upkeep). `ports.py` is what it needs of a disk.
"""
