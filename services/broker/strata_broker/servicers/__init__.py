"""Translators between the wire and the broker's objects; they decide nothing."""
