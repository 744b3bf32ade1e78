"""Patterns over names: wildcards and regular expressions, one or many at once."""
