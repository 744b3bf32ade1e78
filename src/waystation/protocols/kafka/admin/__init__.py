"""What Kafka's admin clients ask: what exists, settings, rules, passwords, and who leads what."""
