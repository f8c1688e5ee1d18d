"""A whole query over TLS and SASL, and what can be seen of its secrets: nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import parts
from tests.fake_msk import ACCESS_KEY, REGION, SECRET_KEY, FakeMsk
from tests.integration.secured import ALICE, KEY_PASSWORD, PASSWORD, Secured, run_secured

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
WRONG = "wr0ng-s3cret"


@pytest.mark.core
def test_a_query_over_sasl_ssl_reads_and_commits_and_leaks_no_secret(
    secured: Secured, unique: Callable[[str], str], group: str, tmp_path: Path
) -> None:
    topic = secured.kafka.create_topic(unique("topic"), partitions=2)
    secured.kafka.produce(topic, [f"v{number}" for number in range(1000)])
    key, chain = parts(secured.encrypted_client)
    plain_key, _ = parts(secured.client)
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    common = {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest"}
    tls = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain, "ssl.key.password": KEY_PASSWORD}
    in_java = tls | {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{LOGIN} username="{ALICE}" password="{escaped}";',
    }
    good = common | secured.options("SASL_SSL", **in_java)
    bad = common | secured.scram(password=WRONG)
    wrong = [
        good | {"kafka.sasl.jaas.config": f"{LOGIN} username={ALICE} password={WRONG}"},
        good | {"kafka.sasl.pasword": WRONG},
        bad | {"kafka.ssl.keystore.key": plain_key},
    ]
    told, everything = run_secured(tmp_path, {"good": good, "bad": bad}, wrong)

    rows = [line for file in tmp_path.glob("good/*.json") for line in file.read_text().splitlines()]
    assert len(rows) == 1000
    assert sum(secured.kafka.committed(group, topic).values()) == 1000
    assert "bad failed:" in told
    assert "invalid credentials" in told
    assert told.count("refused:") == 3
    assert "SCRAM-SHA-512" in everything
    for secret in (PASSWORD, escaped, json.dumps(PASSWORD)[1:-1], "p4ss", WRONG, plain_key.splitlines()[1]):
        assert secret not in everything


def test_a_query_with_iam_credentials_reads_from_a_cluster_that_checks_signatures(tmp_path: Path) -> None:
    iam = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "AWS_MSK_IAM"}
    common = iam | {"subscribe": "t", "kafka.group.id": "g", "startingOffsets": "earliest"}
    line = "software.amazon.msk.auth.iam.IAMLoginModule required awsMaxRetries=7;"
    with (
        FakeMsk({ACCESS_KEY: SECRET_KEY}, named=False) as msk,
        FakeMsk({ACCESS_KEY: "another"}, named=False) as rejecting,
    ):
        for cluster in (msk, rejecting):
            cluster.create_topic("t", partitions=2)
            for partition in (0, 1):
                cluster.produce("t", [f"v{number}" for number in range(50)], partition=partition)
        good = common | {"kafka.bootstrap.servers": msk.bootstrap_servers}
        bad = common | {"kafka.bootstrap.servers": rejecting.bootstrap_servers}
        wrong = [good | {"kafka.sasl.jaas.config": line}]
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
        told, everything = run_secured(tmp_path, {"good": good, "bad": bad}, wrong, keys)
        assert {key: offset for key, (offset, _) in msk.group("g").offsets.items()} == {("t", 0): 50, ("t", 1): 50}
    rows = [line for file in tmp_path.glob("good/*.json") for line in file.read_text().splitlines()]
    assert len(rows) == 100
    assert "bad failed:" in told
    assert "wrong signature" in told
    assert "kafka-cluster:Connect" in told
    assert "without awsMaxRetries" in told
    assert SECRET_KEY not in everything
