"""Checks of queries when they start, in the user's process: the only one that sees the plan of a query."""
