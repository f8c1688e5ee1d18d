"""A query's part in a consumer group: membership, assigned partitions, committed offsets.

``member`` runs the ``protocol`` of its group: ``classic`` (join, sync, heartbeat, assignors) or ``consumer`` (KIP-848).
What a member decides is pure, and lies in ``membership``, the ``states`` of a protocol.
"""
