"""Messages on their way to HTTP's clients: taken or pushed, and the ack ids by which they are settled."""
