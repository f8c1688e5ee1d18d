"""Makes the readers leave before SIGTERM or SIGHUP kills a user's process that does not handle these signals.

Otherwise the process would die at once. In a container whose init has started Python, or whose process 1 is Python, the
readers would die with it.
"""

from __future__ import annotations

import os
import signal
import threading

from spark_group_source.spark.notifications.server import LEAVE_TIMEOUT, NotificationServer

DEADLY = (signal.SIGTERM, signal.SIGHUP)


def leave_before_death(server: NotificationServer) -> None:
    """Handles the signals that the process does not handle itself, if this is its main thread.

    The process then dies of the signal as before. A handler that the user sets later replaces this one.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def die(number: int, frame: object) -> None:
        is_forked_child = os.getpid() != server.process
        try:
            if not is_forked_child:
                _leave(server)
        finally:  # the handler of another signal, such as Spark's of SIGINT, may raise an exception during the wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(128 + number)  # process 1, which no signal kills

    for number in DEADLY:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, die)


def _leave(server: NotificationServer) -> None:
    """Makes the readers leave, on another thread, because the code that the signal interrupted may hold the server's
    lock."""
    leaving = threading.Thread(target=server.leave, name="kafka-group-leave", daemon=True)
    try:
        leaving.start()
    except RuntimeError:  # the interpreter ends
        return
    leaving.join(LEAVE_TIMEOUT)
