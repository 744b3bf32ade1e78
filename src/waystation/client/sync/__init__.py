"""The client for threads: it blocks, and any thread may use it. `waystation` has the public names."""
