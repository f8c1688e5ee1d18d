"""Amazon MSK with IAM, as users of Java's library aws-msk-iam-auth write it; and the region of the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.wire.settings import Sasl
from spark_group_source.wire.tokens import MskIamTokens

BROKER = "b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
GOOD = {"kafka.bootstrap.servers": BROKER, "kafka.group.id": "g", "subscribe": "t"}
SASL = GOOD | {"kafka.security.protocol": "SASL_SSL"}
IAM = SASL | {"kafka.sasl.mechanism": "AWS_MSK_IAM"}
OAUTH = SASL | {
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
}
JAAS, HANDLER = "kafka.sasl.jaas.config", "kafka.sasl.client.callback.handler.class"
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without settings of AWS."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def sasl(given: dict[str, str]) -> Sasl | None:
    return parse_options(given).with_client_id("test").wire.sasl


def tokens(settings: str) -> MskIamTokens:
    found = sasl(IAM | {JAAS: f"{MODULE} {settings};"})
    assert found is not None
    assert isinstance(found.token_provider, MskIamTokens)
    return found.token_provider


@pytest.mark.parametrize(
    "given",
    [
        IAM | {"kafka.sasl.mechanism": "aws_msk_iam"},
        IAM | {JAAS: f"{MODULE};", HANDLER: "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
        OAUTH,
        OAUTH | {JAAS: f"{OAUTH_MODULE};", HANDLER: OAUTH["kafka.sasl.login.callback.handler.class"]},
    ],
    ids=["alone, in lower case", "as in Java", "OAUTHBEARER", "OAUTHBEARER as in Java"],
)
def test_both_forms_of_javas_library_sign_tokens(given: dict[str, str]) -> None:
    assert sasl(given) == Sasl("OAUTHBEARER", token_provider=MskIamTokens("eu-west-1"))


def test_the_login_line_names_a_profile_or_a_role() -> None:
    assert tokens('awsProfileName="orders"') == MskIamTokens("eu-west-1", profile="orders")
    assert tokens("awsDebugCreds=true") == MskIamTokens("eu-west-1", log_identity=True)
    assert tokens('awsDebugCreds="false" awsAddDefaultProviders="false"') == MskIamTokens("eu-west-1")
    arn = "arn:aws:iam::123456789012:role/msk_client_role"
    assert tokens(f'awsRoleArn="{arn}"') == MskIamTokens("eu-west-1", role_arn=arn)
    more = 'awsRoleSessionName="producer" awsRoleExternalId="e-1" awsStsRegion="us-west-2"'
    whole = MskIamTokens(
        "eu-west-1", role_arn=arn, role_session_name="producer", role_external_id="e-1", sts_region="us-west-2"
    )
    assert tokens(f'awsRoleArn="{arn}" {more}') == whole
    in_oauth = sasl(OAUTH | {JAAS: f'{OAUTH_MODULE} awsRoleArn="{arn}" {more};'})
    assert in_oauth == Sasl("OAUTHBEARER", token_provider=whole)


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("B-1.ORDERS.C2.KAFKA.AP-SOUTHEAST-2.AMAZONAWS.COM:9098", "ap-southeast-2"),
        ("b-1-public.orders.abc123.c2.kafka.us-gov-west-1.amazonaws.com.:9198", "us-gov-west-1"),
        ("boot-abc.c1.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-1.orders.abc123.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("b-1.orders.abc123.c2.kafka.eusc-de-east-1.amazonaws.eu:9098", "eusc-de-east-1"),
        (f"10.0.0.1:9098,{BROKER}", "eu-west-1"),
    ],
)
def test_the_region_is_in_the_names_of_brokers(servers: str, region: str, aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_REGION", "sa-east-1")
    assert sasl(IAM | {"kafka.bootstrap.servers": servers}) == Sasl("OAUTHBEARER", token_provider=MskIamTokens(region))


def test_without_such_names_the_region_comes_from_the_environment_or_the_profile(aws: pytest.MonkeyPatch) -> None:
    given = IAM | {"kafka.bootstrap.servers": "kafka.my-kafka-1.example.com:9098"}
    with pytest.raises(OptionError, match=r"region.* is unknown: no name in 'kafka\.bootstrap\.servers'.*AWS_REGION"):
        sasl(given)
    profile = given | {JAAS: f'{MODULE} awsProfileName="orders";'}
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        "[default]\nregion=eu-south-1\n[profile orders]\nregion=eu-south-2\n"
    )
    assert sasl(profile) == Sasl("OAUTHBEARER", token_provider=MskIamTokens("eu-south-2", profile="orders"))
    assert sasl(given) == Sasl("OAUTHBEARER", token_provider=MskIamTokens("eu-south-1"))
    aws.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert sasl(given) == Sasl("OAUTHBEARER", token_provider=MskIamTokens("eu-north-1"))
    aws.setenv("AWS_REGION", "sa-east-1")
    assert sasl(given) == Sasl("OAUTHBEARER", token_provider=MskIamTokens("sa-east-1"))


def iam(settings: str) -> dict[str, str]:
    return IAM | {JAAS: f"{MODULE} {settings};"}


LOGIN_HANDLER = "kafka.sasl.login.callback.handler.class"
PROVIDER = {"kafka.sasl.oauthbearer.token.provider": "os:getcwd"}
PASSWORD = 'a.PlainLoginModule required username="u" password="s3cret";'


# fmt: off
MISTAKES = [
    (IAM | {"kafka.bootstrap.servers": f"{BROKER},b-2.o.c2.kafka.us-east-1.amazonaws.com:9098"}, "eu-west-1 and us"),
    (iam('awsProfile="s3cret"'), r"unknown setting awsProfile \(did you mean awsProfileName\?\)\."),
    (iam('user="s3cret"'), "unknown setting user. Known are awsProfileName, awsRoleArn"),
    (iam('awsMaxRetries="7"'), "without awsMaxRetries, because the source itself retries"),
    (iam('awsMskRegionProvider="a.B?x"'), "awsMskRegionProvider.*AWS_REGION"),
    (iam('awsRoleAccessKeyId="s3cret"'), "awsRoleAccessKeyId.*awsProfileName"),
    (iam('awsDebugCreds="yes"'), "awsDebugCreds is true or false"),
    (iam('awsAddDefaultProviders="true"'), "never falls back to the default"),
    (iam('awsProfileName="a" awsRoleArn="b"'), "not both.*role_arn and source_profile"),
    (iam('awsStsRegion="a"'), "awsStsRegion, because it has no effect without awsRoleArn"),
    (OAUTH | {JAAS: f'{OAUTH_MODULE} clientSecret="s3cret";'}, "'kafka.sasl.jaas.config'"),
    (IAM | {JAAS: f"{OAUTH_MODULE};"},
     "OAuthBearerLoginModule, and 'kafka.sasl.mechanism' is AWS_MSK_IAM.*OAUTHBEARER"),
    (OAUTH | {JAAS: f"{MODULE};"}, "IAMLoginModule, and 'kafka.sasl.mechanism' is OAUTHBEARER.*to AWS_MSK_IAM"),
    (IAM | {JAAS: PASSWORD}, "PlainLoginModule or .*, and .* is AWS_MSK_IAM.*PLAIN or SCRAM"),
    (IAM | PROVIDER, "token.provider' has no effect.*AWS_MSK_IAM"),
    (OAUTH | PROVIDER, "token.provider' has no effect"),
    (OAUTH | {LOGIN_HANDLER: "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"}, "'Google Cloud'"),
    (OAUTH | {LOGIN_HANDLER: "a.Handler"}, "'a.Handler'.*token.provider'"),
    (IAM | {HANDLER: "a.Handler"}, "'a.Handler'.*IAMClientCallbackHandler"),
]
# fmt: on


@pytest.mark.parametrize(("given", "says"), MISTAKES)
def test_the_error_names_the_bad_setting_and_the_fix(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        sasl(given)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("given", [IAM, OAUTH], ids=["AWS_MSK_IAM", "OAUTHBEARER"])
def test_the_error_without_the_signer_names_the_package(given: dict[str, str], aws: pytest.MonkeyPatch) -> None:
    aws.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'spark_group_source\[msk\]'"):
        sasl(given)
