"""Checks of queries when they start. They run in the user's process, the only process that sees the plan of a query."""
