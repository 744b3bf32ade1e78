"""The doors: each translates one protocol to and from the broker's calls, and holds no rule of its own."""
