"""The messages of KIP-848, which kafka-python 3.0 does not have: ConsumerGroupHeartbeat and ConsumerGroupDescribe.

kafka-python's message classes encode and decode them by the schemas beside this module. It finds the class of a
response by the API key of its request, so the responses have a class too.
"""

from __future__ import annotations

from types import new_class
from typing import Any

from kafka.protocol.api_message import ApiMessage


def _message(name: str) -> Any:
    """Creates the class of one message from its schema, a file of this package."""
    return new_class(name, (ApiMessage,), {"load_json": __package__})


ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")
