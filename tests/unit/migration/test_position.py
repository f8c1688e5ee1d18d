"""The last batch of a checkpoint, and files of its offset log, also those of real queries (tests/checkpoints)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_group_source.errors import CannotMigrate
from spark_group_source.migration.last_batch import check_complete, last_batch
from spark_group_source.migration.offset_log import LoggedSource, batch_numbers, check_commit, parse_log
from spark_group_source.migration.position import choose, kafka_offsets
from spark_group_source.offsets import TopicPartition

LOGS = sorted(Path(__file__).parents[2].glob("checkpoints/*/*/offsets/[0-9]*"))
ORDERS = '{"orders":{"0":816,"1":784}}'
PAYMENTS = '{"payments":{"0":100}}'
BOTH = '{"orders":{"0":5},"payments":{"0":6}}'


def log(*lines: str, version: str = "v1", query: str = '{"batchWatermarkMs":0}') -> bytes:
    return "\n".join([version, query, *lines]).encode()


def sources(*lines: str) -> list[LoggedSource]:
    return parse_log(log(*lines))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: "-".join(path.parts[-4:]))
def test_the_offsets_of_recorded_logs_are_found_and_a_cut_log_never_gives_another_offset(path: Path) -> None:
    whole = path.read_bytes()
    found = parse_log(whole)
    assert all(each.offset == "-" or each.topics in ({"orders"}, {"payments"}) for each in found)
    check_commit((path.parents[1] / "commits" / path.name).read_bytes())
    for end in range(len(whole)):
        try:
            part = parse_log(whole[:end])
        except ValueError:
            continue
        assert part == found[: len(part)], end


def test_each_line_is_a_source() -> None:
    found = [LoggedSource("0", ORDERS), LoggedSource("1", "-"), LoggedSource("2", PAYMENTS)]
    assert sources(ORDERS, "-", PAYMENTS) == found
    assert found[0].offsets == {TopicPartition("orders", 0): 816, TopicPartition("orders", 1): 784}


def test_version_2_names_the_sources() -> None:
    found = parse_log(log(f"2:{PAYMENTS}", f"0:{ORDERS}", "mine:-", version="v2"))
    assert found == [LoggedSource("2", PAYMENTS), LoggedSource("0", ORDERS), LoggedSource("mine", "-")]
    assert choose("c", found, 2).topics == {"payments"}
    assert choose("c", found, "mine").name == "mine"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\x00\x00", "first line"),
        (b"v9\n{}\n{}", "v9"),
        (b'v1\n{"batchWatermarkMs":0}', "before the first source"),
        (log(ORDERS, query='{"batch'), "Unterminated"),
        (log(ORDERS, query="[]"), "not a JSON object"),
        (log("", PAYMENTS), "source 0 has no offset"),
        (log("orders", version="v2"), "no source"),
        (b"v1\n\xff\xfe\n{}", "decode"),
    ],
)
def test_a_damaged_log_is_an_error(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_log(content)


def test_a_commit_is_accepted_unless_it_is_damaged() -> None:
    for content in (b'v1\n{"nextBatchWatermarkMs":0}', b"v1\n{}", b"v1", b'v2\n{"stateUniqueIds":{}}'):
        check_commit(content)
    for content in (b"", b"v", b"v1\n{", b"{}", b"v1\n[]"):
        with pytest.raises(ValueError):  # noqa: PT011 -- each has its own text
            check_commit(content)


@pytest.mark.parametrize(("wanted", "number"), [("payments", "1"), (" payments , orders", "3"), (0, "0"), (4, "4")])
def test_a_source_is_chosen_by_its_topics_or_its_number(wanted: str | int, number: str) -> None:
    found = sources(ORDERS, PAYMENTS, ORDERS, BOTH, "-")
    assert choose("c", found, wanted).name == number


def test_some_topics_of_a_source_are_enough_if_no_other_has_them_and_the_only_source_needs_no_choice() -> None:
    assert choose("c", sources(ORDERS, '{"a":{"0":1},"b":{"0":2}}'), "b").name == "1"
    assert choose("c", sources(ORDERS), None).topics == {"orders"}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (None, "c has 4 sources: 0: orders; 1: orders; 2: nothing read; 3: not Kafka."),
        ("orders", "2 sources of c are 'orders'"),
        ("orders,refunds", "No sources of c are 'orders,refunds'"),
        (4, "No sources of c are 4"),
    ],
)
def test_an_unclear_choice_is_an_error_that_lists_the_sources(wanted: str | int | None, says: str) -> None:
    with pytest.raises(CannotMigrate) as refused:
        choose("c", sources(ORDERS, ORDERS, "-", '{"logOffset":3}'), wanted)
    assert says in str(refused.value)
    assert "0: orders; 1: orders; 2: nothing read; 3: not Kafka" in str(refused.value)
    assert "source=" in str(refused.value)


def test_a_source_that_has_read_nothing_has_no_position() -> None:
    for line in ("-", "{}", "null"):
        with pytest.raises(CannotMigrate, match=r"Source 0 of c has not read anything yet.*to earliest"):
            kafka_offsets("c", LoggedSource("0", line))


@pytest.mark.parametrize(
    "line",
    [
        '{"logOffset":3}',
        '{"0":{"value":17,"runTimeMs":5}}',
        '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":4,"index":-1}',
        '{"orders":{"0":-1}}',
        "some text",
    ],
)
def test_another_kind_of_source_is_refused_with_its_offset(line: str) -> None:
    with pytest.raises(CannotMigrate) as refused:
        kafka_offsets("c", LoggedSource("1", line))
    assert f'Source 1 of c is not format("kafka"). Its offset is {line}.' in str(refused.value)


def test_a_checkpoint_of_this_source_needs_no_move() -> None:
    line = '{"group": "g", "topics": {"orders": {"id": "x", "partitions": {"0": [0, 5, 0]}}}, "version": 2}'
    with pytest.raises(CannotMigrate, match="continue with this checkpoint"):
        kafka_offsets("c", LoggedSource("0", line))


def test_temporary_files_and_checksums_are_no_batches() -> None:
    names = ["10", "9", ".10.crc", "10.crc", ".11.6a1f.tmp", "11.tmp", "9.compact", "", "-1", "1e3"]
    assert batch_numbers(names) == [9, 10]


@pytest.mark.parametrize("logged", [[0], [41, 42], [0, 3, 7, 8, 9]], ids=["first", "purged", "gaps before two batches"])
def test_the_last_batch_of_a_log_without_gaps_at_its_end_is_found(logged: list[int]) -> None:
    assert last_batch("c", logged, logged) == logged[-1]
    check_complete("c", logged[-1], logged)


@pytest.mark.parametrize("logged", [[0, 2], [7], [0, 3, 4], [0, 1, 2, 5]])
def test_a_log_with_gaps_at_its_end_is_asynchronous_and_is_refused_complete_or_not(logged: list[int]) -> None:
    for completed in (logged, logged[:-1]):
        with pytest.raises(CannotMigrate, match=r"c has gaps: .*asyncProgressTrackingEnabled.*IntervalMs=0"):
            last_batch("c", logged, completed)


def test_a_batch_that_is_not_complete_is_refused_with_the_run_to_make() -> None:
    assert last_batch("c", [4, 5], [4]) == 5
    says = r"Batch 5 of c is not complete.*sink may.*availableNow=True.*earlier batch"
    with pytest.raises(CannotMigrate, match=says):
        check_complete("c", 5, [4])


def test_a_log_without_a_batch_or_its_last_completed_one_has_no_position() -> None:
    with pytest.raises(CannotMigrate, match="has not read anything"):
        last_batch("c", [], [])
    with pytest.raises(CannotMigrate, match="last completed batch is 5, and the offsets end with batch 4"):
        last_batch("c", [3, 4], [4, 5])
