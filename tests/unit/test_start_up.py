"""Each of Spark's processes imports only what it needs, because every query waits for these imports."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.spark.source import GroupSource
from tests.fake import FakeKafka
from tests.unit.new_process import run_python
from tests.unit.records.build import Record, batch
from tests.unit.wire_options import wire_options

CLIENTS = {"kafka.admin", "kafka.consumer", "kafka.producer", "kafka.net"}
SECURITY = {
    "ssl",
    "spark_group_source.auth.certificates",
    "spark_group_source.auth.oauth.endpoint",
    "spark_group_source.auth.oauth.http_post",
    "spark_group_source.auth.oauth.token_response",
    "spark_group_source.auth.sasl_exchange",
    "spark_group_source.auth.sasl_settings",
    "spark_group_source.auth.tls_session",
}
MEMBERSHIP = {"spark_group_source.group", "spark_group_source.query"}
SLOW = CLIENTS | SECURITY | {"kafka.protocol.admin", "pandas"}

PRINT_IMPORTS = """
import sys
class Recorder:  # sees imports of packages that are not installed, too
    def find_spec(self, name, path=None, target=None):
        print("imports", name)
sys.meta_path.insert(0, Recorder())
"""

DRIVER = """
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
def parsed(servers, more):
    options = {"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "subscribe": "t"}
    return parse_options(options | more).with_client_id("app-1")
"""


def imported(code: str, *arguments: str) -> list[str]:
    """The modules that a new process imports, or tries to, in this order."""
    printed = run_python(PRINT_IMPORTS + code, *arguments).stdout
    return [line.removeprefix("imports ") for line in printed.splitlines() if line.startswith("imports ")]


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t", partitions=1)
        yield running


@pytest.mark.parametrize(
    ("modules", "more"),
    [
        ("spark.stream spark.source", MEMBERSHIP | {"kafka.protocol", "spark_group_source.options.parsing"}),
        ("spark.stream query.driver", set[str]()),
    ],
    ids=["the source and its reader", "the stream runner"],
)
def test_a_process_imports_no_clients_and_the_source_and_its_reader_no_membership(modules: str, more: set[str]) -> None:
    wanted = [f"spark_group_source.{each}" for each in modules.split()]
    names = imported(f"import {', '.join(wanted)}")
    assert wanted[-1] in names
    assert not {*names} & (SLOW | more)


def test_the_options_of_a_query_without_sasl_import_nothing_of_it() -> None:
    names = imported(DRIVER + 'parsed("127.0.0.1:1", {})')
    assert "spark_group_source.auth.security_settings" in names
    assert not {*names} & (SLOW | {"spark_group_source.auth.oauth.cache", "spark_group_source.auth.tokens"})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_query_imports_its_own_group_protocol_only(protocol: str) -> None:
    code = DRIVER + 'Driver(parsed("127.0.0.1:1", {"kafka.group.protocol": sys.argv[1]}))'
    names = imported(code, protocol)
    protocols = [f"spark_group_source.group.{each}.protocol" for each in ("classic", "consumer")]
    assert [each for each in protocols if each in names] == [f"spark_group_source.group.{protocol}.protocol"]


def test_modules_needed_after_the_join_are_imported_before_the_wait_for_it(fake: FakeKafka) -> None:
    code = f"""{DRIVER}
from types import SimpleNamespace
driver = Driver(parsed(sys.argv[1], {{}}), application_id="app")
driver._member = SimpleNamespace(await_assignment=lambda deadline: print("imports the wait") or True)
driver.await_assignment()
"""
    names = imported(code, fake.bootstrap_servers)
    assert fake.request_count("DescribeGroups") == 1
    assert "kafka.protocol.admin" in names[: names.index("the wait")]


def test_the_executors_copies_of_a_source_and_its_readers_import_no_options_and_no_membership(tmp_path: Path) -> None:
    source = GroupSource({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t"})
    schema = source.schema()
    file = tmp_path / "copies"
    file.write_bytes(pickle.dumps([source, source.streamReader(schema), source.reader(schema)]))
    load = "import pickle, pathlib; source, *_ = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())"
    names = imported(load, str(file))
    assert "spark_group_source.spark.tasks" in names
    assert not {*names} & (SLOW | MEMBERSHIP | {"kafka.protocol", "spark_group_source.options"})
    in_the_planner = imported(f"{load}; source.streamReader(source.schema())", str(file))
    assert "spark_group_source.group.settings" in in_the_planner
    assert not {*in_the_planner} & (SLOW | {"kafka.protocol", "spark_group_source.options.parsing"})


def test_a_task_needs_no_clients_no_pandas_and_nothing_of_signing_in(fake: FakeKafka, tmp_path: Path) -> None:
    fake.append("t", 0, batch([Record(b"value", b"key"), Record(None)]), 2)
    task = FetchTask((OffsetRange("t", 0, 0, 2, str(fake.ids["t"])),), wire_options(fake), ALL_COLUMNS)
    file = tmp_path / "task"
    file.write_bytes(pickle.dumps(task))
    code = """
import pickle, pathlib
from spark_group_source.fetch.reader import read
assert sum(rows.num_rows for rows in read(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()))) == 2
"""
    names = imported(code, str(file))
    assert "spark_group_source.records.decode" in names
    assert not {*names} & (SLOW | MEMBERSHIP | {"spark_group_source.auth"})


def test_a_process_with_the_drivers_token_imports_nothing_that_requests_one() -> None:
    code = """
import time
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.client_tokens import ClientTokens
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.clock import Deadline
from spark_group_source.text import Secret
from spark_group_source.wire.security import ExportedToken
tokens = ClientTokens(ClientCredentials("https://localhost/token", "id", Secret("secret")))
now = time.time()
sign_in = SaslSignIn(Sasl("OAUTHBEARER", token_provider=tokens))
sign_in.import_token(ExportedToken(Secret("token"), now + 600, now + 300))
assert tokens.fetch(Deadline.after(0.0)).text == "token"
"""
    names = imported(code)
    assert "spark_group_source.auth.oauth.cache" in names
    assert not {*names} & SLOW
