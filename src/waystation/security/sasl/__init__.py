"""SASL's mechanisms, the broker's side, without I/O: bytes in, what to answer out."""
