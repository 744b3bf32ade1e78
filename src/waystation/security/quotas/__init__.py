"""Client quotas: how fast users, clients, addresses and namespaces may be."""
