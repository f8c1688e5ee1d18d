"""Shutdown hooks of Spark's JVM, which notify the readers that the JVM ends, and wait until they have left.

If the JVM is process 1 of a container, or the only child of an init, its end kills the readers. The hooks run no Python
code, so that the JVM's shutdown depends on no other process.
"""

from __future__ import annotations

import contextlib
from typing import Any

JVM_ENDS = "the JVM ends"
"""The event that the hook puts into the queue."""

TIMEOUT_NS = 2_200_000_000
"""Maximum nanoseconds that the JVM's shutdown waits for the readers. py4j passes a number as Java's long, which the
method needs, only if it has more than 32 bits."""


class ShutdownHooks:
    """The hooks of one JVM. They exist only while there are readers.

    Args:
        jvm: py4j's view of the JVM.
        queue: a queue in the JVM from which this process takes events.
    """

    def __init__(self, jvm: Any, queue: Any) -> None:
        self._jvm = jvm
        self._queue = queue
        self._hooks: list[Any] = []
        self._left: Any = None

    def add(self) -> None:
        """Adds the hooks: from now on the JVM's shutdown waits for :meth:`remove`, at most :data:`TIMEOUT_NS`."""
        concurrent = self._jvm.java.util.concurrent
        self._left = concurrent.CountDownLatch(1)
        self._add("kafka-group-tell", self._queue, "offer", JVM_ENDS)
        self._add("kafka-group-wait", self._left, "await", TIMEOUT_NS, concurrent.TimeUnit.NANOSECONDS)

    def remove(self) -> None:
        """Removes the hooks, and ends the wait of a JVM that shuts down."""
        if self._left is not None:
            self._left.countDown()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        for hook in self._hooks:
            with contextlib.suppress(Exception):  # the JVM shuts down, and keeps its hooks
                runtime.removeShutdownHook(hook)
        self._hooks.clear()

    def _add(self, name: str, target: Any, method: str, *arguments: Any) -> None:
        """Adds a hook that calls a method of an object in the JVM."""
        beans, lang = self._jvm.java.beans, self._jvm.java.lang
        values = self._jvm.java.util.ArrayList()
        for each in arguments:
            values.add(each)
        call = beans.Statement(target, method, values.toArray())
        hook = lang.Thread(beans.EventHandler.create(lang.Class.forName("java.lang.Runnable"), call, "execute"), name)
        lang.Runtime.getRuntime().addShutdownHook(hook)
        self._hooks.append(hook)
