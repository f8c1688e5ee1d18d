"""The package ``kafka`` behaves as usual, but its clients are imported only when somebody uses them."""

from __future__ import annotations

import os

import pytest

from tests.unit.new_process import run_python

CLIENTS = "{'kafka.admin', 'kafka.consumer', 'kafka.producer', 'kafka.net'}"

FORKS = """
import os, sys
import spark_group_source
for code in sys.argv[1:]:
    if os.fork() == 0:
        try:
            exec(code, {"sys": sys})
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print("----", flush=True)
"""


def outputs(*codes: str) -> list[str]:
    """What each code prints, in a process that has imported only this package before, as Spark's processes do."""
    return [each.strip() for each in run_python(FORKS, *codes).stdout.split("----\n")[:-1]]


def test_messages_are_imported_without_the_clients_and_their_first_use_imports_them() -> None:
    messages = "import kafka, kafka.errors\nfrom kafka.protocol.consumer import FetchRequest"
    uses = (
        "from kafka import KafkaConsumer",
        "import kafka.errors; from kafka import *",
        "from kafka.admin import KafkaAdminClient; from kafka import KafkaConsumer",
        "import kafka; assert kafka.__version__; from kafka import KafkaConsumer",
    )
    checks = "from kafka.consumer import KafkaConsumer as own\nimport kafka.errors\nfrom kafka import errors"
    found = outputs(
        f"{messages}\nprint({CLIENTS} & {{*sys.modules}})",
        *(f"{code}\n{checks}\nprint(KafkaConsumer is own, kafka.errors is errors)" for code in uses),
    )
    assert found == ["set()", *["True True"] * len(uses)]


MISSING = """
import kafka
for _ in range(2):
    try:
        kafka.Missing
    except AttributeError as error:
        print(error)
try:
    from kafka import Missing
except ImportError as error:
    print("cannot import" in str(error))"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import kafka
barrier = Barrier(8)
def use(_):
    barrier.wait()
    return kafka.KafkaConsumer.__name__
with ThreadPoolExecutor(8) as pool:
    print({*pool.map(use, range(8))})"""
IMPORTED = """
for name in [*sys.modules]:
    if name.split(".")[0] in ("kafka", "spark_group_source"):
        del sys.modules[name]
import kafka
before = kafka
import spark_group_source, kafka
print(kafka is before)"""


def test_missing_names_are_errors_threads_wait_for_the_clients_and_an_imported_package_is_left_alone() -> None:
    message = "module 'kafka' has no attribute 'Missing'"
    missing, threads, imported = outputs(MISSING, THREADS, IMPORTED)
    assert missing.splitlines() == [message, message, "True"]
    assert threads == "{'KafkaConsumer'}"
    assert imported == "True"


FEATURES = """
import spark_group_source
from kafka.protocol.metadata import ApiVersionsResponse
features = [{"name": "group.version", "min_version": 0, "max_version": 1}]
sent = ApiVersionsResponse(version=3, error_code=0, api_keys=[], throttle_time_ms=7, supported_features=features)
received = ApiVersionsResponse.decode(sent.encode(version=3), version=3)
print(__debug__, received.throttle_time_ms, received.supported_features[0].max_version)"""


@pytest.mark.parametrize("level", ["", "1", "2"])
def test_responses_are_decoded_without_assertions(level: str) -> None:
    """The features of a broker are a tagged field, whose structs have tagged fields of their own."""
    found = run_python(FEATURES, env=os.environ | {"PYTHONOPTIMIZE": level}).stdout.split()
    assert found == [str(not level), "7", "1"]
