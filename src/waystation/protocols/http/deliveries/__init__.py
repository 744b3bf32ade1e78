"""Messages on their way to HTTP's clients: taken or pushed, and who holds them until their verdict."""
