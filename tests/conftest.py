"""What holds for every test. Fixtures that start brokers live beside the tests that use them, over tests/support."""

from __future__ import annotations

from hypothesis import settings

# The machine's speed is not a property of the code: hypothesis' deadline per example would make it one.
settings.register_profile("waystation", deadline=None, print_blob=True)
settings.load_profile("waystation")
