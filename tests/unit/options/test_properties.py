"""Properties files are read as ``java.util.Properties`` reads them; the command line takes precedence over them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options.properties import _pairs, read_options

JOBS = Path(__file__).resolve().parents[3] / "jobs"

LINES: dict[str, dict[str, str]] = {
    "": {},
    "# acks=1\n  ! acks=1\n\n \t\n": {},
    "a=1": {"a": "1"},
    "a = 1 ": {"a": "1 "},
    "  a:1": {"a": "1"},
    "a 1": {"a": "1"},
    "a\t\t=\t1": {"a": "1"},
    "a": {"a": ""},
    "a=": {"a": ""},
    "a==1": {"a": "=1"},
    "a = = 1": {"a": "= 1"},
    "a b=1": {"a": "b=1"},
    "=1": {"": "1"},
    r"a\=b\:c\ d=1": {"a=b:c d": "1"},
    r"a=C:\\dir\\file": {"a": r"C:\dir\file"},
    r"a=one\ttwo\nthree\fx\qy": {"a": "one\ttwo\nthree\fxqy"},
    "a=b\\u00e9\\u20AC": {"a": "bé€"},
    "a=\\uD83D\\uDE00": {"a": "\N{GRINNING FACE}"},
    "a=1\\\n   2\\\n\t3": {"a": "123"},
    "a=1\\\\\nb=2": {"a": "1\\", "b": "2"},
    "a=1\\\\\\\n2": {"a": "1\\2"},
    "a=1\\\n# no comment": {"a": "1# no comment"},
    "# comment \\\na=1": {"a": "1"},
    "a=1\\": {"a": "1"},
    "a=1\r\nb=2\rc=3": {"a": "1", "b": "2", "c": "3"},
    "a=1\na=2": {"a": "2"},
    'a="quoted" #here': {"a": '"quoted" #here'},
}
"""Text -> what ``java.util.Properties`` has of it."""


@pytest.mark.parametrize("text", LINES)
def test_a_file_is_read_as_java_reads_it(text: str) -> None:
    assert {name: value for _, name, value in _pairs(text)} == LINES[text]


def test_names_need_no_prefix_and_become_those_of_the_options(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    lines = [
        "security.protocol=SASL_SSL",
        "KAFKA.sasl.mechanism=PLAIN",
        "startingoffsets=earliest",
        "acks=1",
        "group.id=g",
    ]
    file.write_text("\n".join(lines))
    assert read_options(file) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "startingOffsets": "earliest",
        "acks": "1",
        "kafka.group.id": "g",
    }


def test_a_file_is_utf_8_or_else_latin_1_as_in_java(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    for content in ("\N{BOM}sasl.password=pässwörd".encode(), "sasl.password=pässwörd".encode("latin-1")):
        file.write_bytes(content)
        assert read_options(file) == {"kafka.sasl.password": "pässwörd"}


def test_an_error_names_the_file_and_the_line_and_shows_no_value(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    with pytest.raises(OptionError, match=r"client\.properties' cannot be read: No such file"):
        read_options(file)
    file.write_text("# one\nsasl.password=s3cret\\u12")
    with pytest.raises(OptionError, match=r"line 2 has a \\u without four") as raised:
        read_options(file)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        read_options(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        "ssl.keystore.key=-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIE0s3cret",
        "ssl.keystore.key=-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIE+s3cret/==",
        "sasl.jaas.config=PlainLoginModule required\n  s3cret",
        f"sasl.password=\n{'s3cret' * 50}=",
        "sasl.username=a\n=s3cret",
    ],
)
def test_the_rest_of_a_value_is_no_name_and_is_not_shown(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "client.properties"
    for encoding in ("utf-8", "utf-16"):
        file.write_text(lines, encoding=encoding)
        with pytest.raises(OptionError, match="is malformed: line [12] (has no value|does not begin with)") as raised:
            read_options(file)
        assert "s3cret" not in str(raised.value)
    file.write_text("ssl.endpoint.identification.algorithm=\n")
    assert read_options(file) == {"kafka.ssl.endpoint.identification.algorithm": ""}


def job_options(monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, str]:
    """The options of the source of a job with these arguments."""
    monkeypatch.syspath_prepend(str(JOBS))
    job: dict[str, Any] = runpy.run_path(str(JOBS / "stream_job.py"))
    required = ["--bootstrap-servers", "b1:1", "--topic", "t", "--group", "g", "--checkpoint", "/c"]
    args = job["job_parser"]("job", None).parse_args([*required, *more])
    found: dict[str, str] = job["source_options"](args)
    return found


def test_a_job_takes_options_from_a_file_and_its_arguments_take_precedence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=other:1\nsasl.password=s3cret\nstartingOffsets=latest\nclient.rack=a\nsubscribePattern=.*\n"
    )
    given = {"kafka.bootstrap.servers": "b1:1", "kafka.group.id": "g", "subscribe": "t", "startingOffsets": "earliest"}
    assert job_options(monkeypatch) == given
    config = ("--command-config", str(file))
    of_file = {"kafka.sasl.password": "s3cret", "startingOffsets": "latest", "kafka.client.rack": "a"}
    assert job_options(monkeypatch, *config) == given | of_file
    arguments = ("--starting-offsets", "earliest", "--option", "kafka.client.rack=b")
    assert job_options(monkeypatch, *config, *arguments) == given | of_file | {
        "startingOffsets": "earliest",
        "kafka.client.rack": "b",
    }


def test_a_bad_file_or_option_ends_a_job_with_2_and_shows_no_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(JOBS))
    job = runpy.run_path(str(JOBS / "stream_job.py"))
    given = ["--bootstrap-servers", "b1:1", "--topic", "t", "--group", "g", "--checkpoint", "/c"]
    with pytest.raises(SystemExit, match="2"):
        job["job_parser"]("job", None).parse_args([*given, "--option", "kafka.sasl.password s3cret"])
    args = job["job_parser"]("job", None).parse_args([*given, "--command-config", str(tmp_path / "none")])

    class Session:
        """Spark, as far as a job needs it before its queries."""

        class builder:  # noqa: N801 -- Spark's name
            appName = config = staticmethod(lambda *_, **__: Session.builder)  # noqa: N815 -- Spark's name
            getOrCreate = staticmethod(lambda: Session)  # noqa: N815 -- Spark's name

    job["run"].__globals__.update(SparkSession=Session, register=lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert job["run"](args, lambda _, arguments: job["source_options"](arguments)) == 2
    shown = capsys.readouterr().err
    assert "job: [INVALID_OPTION] The options file" in shown
    assert "s3cret" not in shown
