"""Replicated state and metadata rows, kept in RocksDB or in memory.

Read in this order: `ports` (what a store of rows can do), `rocksdb_store` and `memory_store` (the
two adapters), `rows` (one small class per kind of row), `flush` (when state becomes durable).
"""
