"""A deterministic simulation of queries, brokers and Spark: one thread at a time, one seed for all chance."""
