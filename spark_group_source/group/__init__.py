"""A query's part in a consumer group: membership, assigned partitions, committed offsets.

``member`` has the life cycle of a membership, and the thread that runs it. Its group protocol, ``classic`` (join, sync,
heartbeat, assignors) or ``consumer`` (KIP-848), sends the requests and returns what happened. A protocol never calls
the member. The decisions of a member are pure functions in ``membership`` and the ``states`` of a protocol. The table
in ``error_actions`` shows what an error code leads to.
"""
