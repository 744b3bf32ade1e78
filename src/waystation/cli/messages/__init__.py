"""The commands that send and receive messages, and how a message looks on a terminal."""
