"""Decodes Fetch responses to Arrow: ``record_batches`` finds the record batches, ``response_batches`` verifies and
decompresses them to ``decode_units``, ``record_boundaries`` and ``record_fields`` locate records and their fields, and
``decode`` builds the columns. All state belongs to one call: a task reports nothing back to the planner.
"""
