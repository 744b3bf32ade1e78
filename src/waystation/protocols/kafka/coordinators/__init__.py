"""What Kafka's clients ask a coordinator: groups of both protocols, committed offsets, transactions."""
