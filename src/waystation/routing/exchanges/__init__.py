"""Exchanges, one file for each kind, and their bindings."""
