"""Reads offset ranges on executors: ``task_reader`` runs a ``fetch_task``, ``error_handler`` decides after errors, and
``list_offsets`` and ``offset_for_leader_epoch`` also serve the driver. A task reports nothing back to the planner: it
returns rows or fails, and the driver learns of progress only from Spark.
"""
