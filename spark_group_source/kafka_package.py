"""Imports kafka-python's messages without its clients, and so that they also work without assertions."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec


def defer_clients() -> None:
    """Puts the package ``kafka`` into ``sys.modules`` without running its ``__init__.py``, unless it is there already.

    That file imports the producer, the consumer and the admin client, which this source never uses. The import would
    take 0.1 s in each process that Spark starts for a query. The first use of one of the package's names runs the file,
    so other code sees no difference.
    """
    spec = None if "kafka" in sys.modules else find_spec("kafka")
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, module_from_spec(spec)
    lock = threading.RLock()
    started = False

    def find(name: str) -> object:
        nonlocal started
        with lock:  # another thread waits until the file has run
            if not started:
                started = True
                loader.exec_module(package)
        if name not in vars(package):
            raise AttributeError(f"module 'kafka' has no attribute {name!r}")
        return vars(package)[name]

    vars(package)["__getattr__"] = find  # Python calls it for names that a module does not have (PEP 562)
    sys.modules["kafka"] = package


def decode_without_assertions() -> None:
    """Makes kafka-python decode responses where Python removes assertions (``PYTHONOPTIMIZE``, ``python -O``).

    kafka-python reads the byte of an empty set of tagged fields within an assertion. Without the assertion, every later
    field is read from the wrong byte:
    https://github.com/dpkp/kafka-python/blob/3.0.9/kafka/protocol/schemas/fields/codecs/tagged_fields.py#L103. No other
    assertion of kafka-python changes what its messages read or write.
    """
    if __debug__:
        return
    from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields  # noqa: PLC0415 -- see defer_clients
    from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32  # noqa: PLC0415

    def decode_empty(cls: type, data: object) -> None:
        count = UnsignedVarInt32.decode(data)
        if count != 0:
            raise ValueError(f"{count} tagged fields where there can be none")

    TaggedFields.decode_empty = classmethod(decode_empty)
