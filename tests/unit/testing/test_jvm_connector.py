"""The jars of the JVM connector are downloaded once, in the version of PySpark or else an earlier one."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from benchmark import connector
from benchmark.errors import BenchError

OWN, EARLIER = pyspark.__version__, "4.0.99"


class Repository:
    """A repository with the connector of these versions."""

    versions: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fetch_jars(self, module: str, jars: Path, needed: str, attempts: int) -> str:
        (version,) = [each for each in (OWN, EARLIER) if f'rev="{each}"' in module]
        self.asked.append(version)
        if version not in self.versions:
            return f"{version} not found"
        jars.mkdir()
        (jars / needed.replace("*", version)).touch()
        return ""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository()
    monkeypatch.delenv("SPARK_KAFKA_JARS", raising=False)
    monkeypatch.setenv("SPARK_GROUP_SOURCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(connector, "FALLBACK", EARLIER)
    monkeypatch.setattr(connector, "fetch_jars", made.fetch_jars)
    return made


@pytest.mark.parametrize(("version", "asked"), [(OWN, [OWN]), (EARLIER, [OWN, EARLIER])], ids=["own", "earlier"])
def test_the_connector_of_the_installed_spark_comes_first_and_is_downloaded_once(
    repository: Repository, version: str, asked: list[str]
) -> None:
    repository.versions = (version,)
    first, second = connector.connector_jars(), connector.connector_jars()
    assert [each.name for each in first] == [f"{connector.ARTIFACT}-{version}.jar"]
    assert second == first
    assert repository.asked == asked


def test_without_any_the_error_has_what_ivy_said_of_each(repository: Repository) -> None:
    with pytest.raises(BenchError, match=f"(?s){OWN} not found.*{EARLIER} not found.*SPARK_KAFKA_JARS"):
        connector.connector_jars()


def test_a_directory_without_the_connector_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_KAFKA_JARS", str(tmp_path))
    with pytest.raises(BenchError, match=f"SPARK_KAFKA_JARS is {tmp_path}"):
        connector.connector_jars()
