"""Reads offset ranges on executors. A task reports nothing back to the planner: it returns rows or fails."""
