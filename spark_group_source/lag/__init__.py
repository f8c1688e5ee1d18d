"""Lag in sight: how far a query or its group is behind the ends of the logs."""
