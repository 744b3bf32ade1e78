"""What nodes ask and answer each other: the messages, the connections that carry them, and who answers."""
