"""A query's part in a consumer group: membership, assigned partitions, committed offsets.

``member`` has the life cycle of a membership, and the thread that runs it. Its group protocol, ``classic`` (join, sync,
heartbeat, assignors) or ``consumer`` (KIP-848), sends the requests and returns what happened. A protocol never calls
the member. What a member decides is pure, and lies in ``membership`` and the ``states`` of a protocol; the table of
``error_actions`` has what an error code leads to.
"""
