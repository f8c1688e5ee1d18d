"""The classic group protocol: members join and sync, and the leader assigns the partitions."""
