"""What ends a run in virtual time fails the test where it waits."""

from __future__ import annotations

import threading
import time

import pytest

pytestmark = pytest.mark.usefixtures("fake")


def test_a_deadlock_is_an_error() -> None:
    with pytest.raises(AssertionError, match="a deadlock"):
        threading.Event().wait()


def test_a_loop_without_a_wait_is_an_error() -> None:
    with pytest.raises(AssertionError, match="loop without a wait"):
        next(each for each in iter(time.monotonic, None) if each > 1.0)


def test_an_error_of_a_thread_is_one_of_the_test() -> None:
    threading.Thread(target={}.__getitem__, args=("missing",)).start()
    with pytest.raises(KeyError, match="missing"):
        time.sleep(1.0)
