"""Compares the speed of ``format("kafka-group")`` and Spark's ``format("kafka")``. Run ``python jobs/benchmark``."""
