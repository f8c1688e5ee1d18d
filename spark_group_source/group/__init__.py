"""A query's part in a consumer group: membership, assigned partitions, committed offsets.

Directly here is what every group protocol needs: the member's thread and state, requests to the coordinator, offsets.
``classic/`` is the classic protocol (join, sync, heartbeat, assignors), ``consumer/`` the protocol of KIP-848.
"""
