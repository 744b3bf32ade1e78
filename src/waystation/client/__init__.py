"""A small synchronous client of our own Kafka door: what the command line is made of. It talks to one broker."""
