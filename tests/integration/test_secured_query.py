"""A whole query over TLS and SASL, and what can be seen of its secrets: nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.certificates import parts
from tests.fake_msk import ACCESS_KEY, REGION, SECRET_KEY, FakeMsk
from tests.integration.secured import ALICE, KEY_PASSWORD, PASSWORD, Secured, run_secured

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
WRONG = "wr0ng-s3cret"
ESCAPED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')


IAM = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "AWS_MSK_IAM"}


class Ran(NamedTuple):
    """What queries of one driver did: the console, all that can be seen of them, and where their rows are."""

    console: str
    everything: str
    work: Path

    def rows(self, name: str) -> int:
        return sum(len(file.read_text().splitlines()) for file in self.work.glob(f"{name}/*.json"))


@pytest.fixture(scope="module")
def ran(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Queries with a password, and queries with IAM credentials; ``bad`` ones have others than the cluster knows."""
    secured.kafka.produce(
        secured.kafka.create_topic("secured-query", partitions=2), [f"v{each}" for each in range(1000)]
    )
    key, chain = parts(secured.encrypted_client)
    common = {"subscribe": "secured-query", "kafka.group.id": "secured-query", "startingOffsets": "earliest"}
    tls = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain, "ssl.key.password": KEY_PASSWORD}
    in_java = tls | {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{LOGIN} username="{ALICE}" password="{ESCAPED}";',
    }
    good = common | secured.options("SASL_SSL", **in_java)
    bad = common | secured.scram(password=WRONG)
    line = "software.amazon.msk.auth.iam.IAMLoginModule required awsMaxRetries=7;"
    with (
        FakeMsk({ACCESS_KEY: SECRET_KEY}, named=False) as msk,
        FakeMsk({ACCESS_KEY: "another"}, named=False) as rejecting,
    ):
        for cluster in (msk, rejecting):
            cluster.create_topic("secured-query", partitions=2)
            for partition in (0, 1):
                cluster.produce("secured-query", [f"v{number}" for number in range(50)], partition=partition)
        iam = common | IAM | {"kafka.bootstrap.servers": msk.bootstrap_servers}
        bad_iam = common | IAM | {"kafka.bootstrap.servers": rejecting.bootstrap_servers}
        wrong = [
            good | {"kafka.sasl.jaas.config": f"{LOGIN} username={ALICE} password={WRONG}"},
            good | {"kafka.sasl.pasword": WRONG},
            bad | {"kafka.ssl.keystore.key": parts(secured.client)[0]},
            iam | {"kafka.sasl.jaas.config": line},
        ]
        work = tmp_path_factory.mktemp("secured")
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
        queries = {"good": good, "bad": bad, "iam": iam, "bad_iam": bad_iam}
        found = Ran(*run_secured(work, queries, wrong, keys), work)
        committed = {key: offset for key, (offset, _) in msk.group("secured-query").offsets.items()}
    assert committed == {("secured-query", 0): 50, ("secured-query", 1): 50}
    return found


@pytest.mark.core
def test_a_query_over_sasl_ssl_reads_and_commits_and_leaks_no_secret(secured: Secured, ran: Ran) -> None:
    assert ran.rows("good") == 1000
    assert sum(secured.kafka.committed("secured-query").values()) == 1000
    for said in ("bad failed:", "invalid credentials"):
        assert said in ran.console
    assert "During handling of the above exception" not in ran.console
    assert ran.console.count("refused:") == 4
    assert "SCRAM-SHA-512" in ran.everything
    secrets = (PASSWORD, ESCAPED, json.dumps(PASSWORD)[1:-1], "p4ss", WRONG, parts(secured.client)[0].splitlines()[1])
    for secret in secrets:
        assert secret not in ran.everything


def test_a_query_with_iam_credentials_reads_from_a_cluster_that_checks_signatures(ran: Ran) -> None:
    assert ran.rows("iam") == 100
    for said in ("bad_iam failed:", "wrong signature", "kafka-cluster:Connect", "without awsMaxRetries"):
        assert said in ran.console
    assert SECRET_KEY not in ran.everything
