"""Errors of systems that StrataMQ is compared with."""

from __future__ import annotations


class PeerError(Exception):
    """A system did not start, ended, or did not do its work; the run goes on without it."""


class MissingError(Exception):
    """A system lacks a tool; the text says how to install it."""
