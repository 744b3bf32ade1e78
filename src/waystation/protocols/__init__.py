"""The protocols: each translates to and from the broker's calls, and has no rule of its own."""
