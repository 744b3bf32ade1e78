"""The Kafka protocol: a sans-I/O engine, one file per API family, and the thin socket layer around them."""
