"""Carries gossip between replicas over HTTP: signatures, client, endpoint, server. It never reads what it carries."""
