"""Translators between the wire and the broker's own objects; they decide nothing."""
