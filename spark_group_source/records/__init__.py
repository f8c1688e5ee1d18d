"""Decodes Fetch responses to Arrow. All state belongs to one call: a task reports nothing back to the planner."""
