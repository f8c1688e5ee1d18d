"""Errors that Spark receives: the message, and a traceback only if it adds information."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from contextlib import closing

import pytest
from pyspark.util import handle_worker_exception

from spark_group_source.errors import BrokerUnavailable, GroupSourceError, OptionError, TopicError
from spark_group_source.spark.hide_tracebacks import HIDE, hide_tracebacks

MESSAGE = TopicError("Topic 't' does not exist.", "Create it.", error_code=3)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "")  # restored after the test, whatever it sets


def users_function() -> None:
    raise FileNotFoundError("ranges.json")


def unreachable() -> None:
    """Fails as a connection does: the text of each cause is part of the next message."""
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise BrokerUnavailable(f"Broker b:1 cannot be reached ({error}).") from error
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"No broker answered: {error.happened}") from error


def failed() -> None:
    try:
        users_function()
    except OSError as error:
        raise OptionError(f"The function 'm:f' failed: {error!r}.") from error


def missing_topic() -> None:
    raise MESSAGE


def bug() -> None:
    raise GroupSourceError("The membership failed.") from KeyError("x")


def sent_to_spark(error: BaseException) -> list[str]:
    sent = io.BytesIO()
    try:
        raise error
    except BaseException as raised:
        handle_worker_exception(raised, sent)
    return sent.getvalue()[8:].decode().splitlines()


@pytest.mark.parametrize(
    ("failing", "traceback", "last"),
    [
        (missing_topic, None, f"spark_group_source.errors.TopicError: {MESSAGE}"),
        # Causes that the message contains are removed.
        (unreachable, None, "No broker answered: Broker b:1 cannot be reached ([Errno 111] Connection refused)."),
        (failed, "in users_function", "[INVALID_OPTION] The function 'm:f' failed: FileNotFoundError('ranges.json')."),
        (bug, "KeyError", "[KAFKA_GROUP_SOURCE] The membership failed."),
    ],
)
def test_an_error_is_one_line_and_bugs_and_failures_of_the_users_function_keep_their_tracebacks(
    failing: Callable[[], None], traceback: str | None, last: str
) -> None:
    with pytest.raises(GroupSourceError) as raised, hide_tracebacks():
        failing()
    lines = sent_to_spark(raised.value)
    assert last in lines[-1]
    if traceback is None:
        assert len(lines) == 1
    else:
        assert any(traceback in each for each in lines)


def test_closing_a_read_early_is_not_an_error() -> None:
    def rows() -> Generator[int, None, None]:
        with hide_tracebacks():
            yield 1

    with closing(rows()) as reading:
        assert next(reading) == 1


def test_errors_of_other_packages_pass_unchanged() -> None:
    bug = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as raised, hide_tracebacks():
        raise bug
    assert raised.value is bug
    assert len(sent_to_spark(bug)) > 1
