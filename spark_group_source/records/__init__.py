"""Decodes Fetch responses to Arrow: ``batches`` finds the record batches, ``responses`` verifies and decompresses them,
``boundaries`` and ``fields`` locate records and their fields, and ``decode`` builds the columns. All state belongs to
one call: a task reports nothing back to the planner.
"""
