"""The group protocol of KIP-848: the coordinator assigns the partitions, and members report theirs in heartbeats."""
