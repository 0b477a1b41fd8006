"""The one place that says which version this is; packages, image and chart take it from here."""

VERSION = "0.2.0"
