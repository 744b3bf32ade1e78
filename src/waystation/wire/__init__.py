"""Codecs and shapes that several protocols, or both sides of one, use. Pure."""
