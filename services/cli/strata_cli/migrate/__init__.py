"""Copies topics, consumer groups, positions and messages of a RocketMQ cluster into StrataMQ.

Reading order: `source_rows` (the source's own description of itself), `plan` (what becomes of it
here), `state` (the file that makes a run resumable), `messages` (one message in both forms),
`copier` (the run), `positions`, `verifying`. `connections` and `source` talk to RocketMQ, `target`
to StrataMQ.
"""
