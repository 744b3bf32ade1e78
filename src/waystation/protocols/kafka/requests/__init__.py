"""A request of Kafka's protocol, whatever it asks: codec and bounds, who asks, errors and nodes in answers."""
