"""What a node decides, from what it knows: who leads, who is in sync, where replicas go. Pure: entries of the store in,
wanted writes out. Clocks, logs and the store itself are the business of `waystation.cluster` around it."""
