"""Lag: how far a query or its group is behind the end offsets of its topics."""
