"""The commands about queues: their settings and messages, delayed messages, dead letters and redrive."""
