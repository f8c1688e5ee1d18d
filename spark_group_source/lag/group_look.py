"""The former name of :mod:`~spark_group_source.lag.group_offsets_probe`, for programs that import it."""

from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe as GroupLook

__all__ = ["GroupLook"]
