"""The client for asyncio. `waystation.aio` has the public names."""
