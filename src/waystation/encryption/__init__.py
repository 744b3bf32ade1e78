"""Encryption at rest: where keys come from, and how bytes are sealed with them.

A master key (`master_key.py`) comes from outside. It wraps the folder keys, which are in one small file of the data
folder (`key_file.py`). From a folder key follow data keys, one for each file that is being written (`key_ring.py`).
What is stored and how: docs/decisions/021-encryption-at-rest.md. Needs the package `cryptography` (the extra
`encryption`), which is imported where a key is made, and nowhere else.
"""
