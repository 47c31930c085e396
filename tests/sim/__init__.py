"""Seeded simulator of replicas that gossip: the protocol's own decisions over plain dictionaries and a bad network."""
