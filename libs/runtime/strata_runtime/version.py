"""The version of StrataMQ; packages, image and chart take it from here."""

VERSION = "0.2.0"
