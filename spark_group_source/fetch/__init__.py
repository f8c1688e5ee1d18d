"""Reads offset ranges on executors: ``reader`` runs a ``task``, ``errors`` decides after errors, and ``leaders`` also
serves the driver. A task reports nothing back to the planner: it returns rows or fails, and the driver learns of
progress only from Spark.
"""
