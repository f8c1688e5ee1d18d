"""Options of tokens as users of Java write them: OAuth, and Amazon MSK with IAM by the library aws-msk-iam-auth."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.auth import tokens
from spark_group_source.auth.msk_iam import MskIam
from spark_group_source.auth.msk_iam_tokens import MskIamTokens
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.client_tokens import ClientTokens
from spark_group_source.auth.oauth.token import RefreshWindow
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tokens import FileTokens, FunctionTokens
from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.text import Secret
from tests.certificates import Authority
from tests.unit.options.test_options import GOOD

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
OTHER_PACKAGES = f"{PACKAGE}secured.", f"kafkashaded.{PACKAGE}"
URL = "https://login.example.com/oauth2/token"
OAUTH = GOOD | {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
TOKEN, URL_NAME = (f"kafka.sasl.oauthbearer.token.{each}" for each in ("provider", "endpoint.url"))
ENDPOINT = OAUTH | {URL_NAME: URL}
ID, SECRET = (f"kafka.sasl.oauthbearer.client.credentials.client.{each}" for each in ("id", "secret"))
CLIENT = ENDPOINT | {ID: "orders", SECRET: "s3cret"}
FILE = {URL_NAME: "file:///var/run/token"}
KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----s3cretAA-----END ENCRYPTED PRIVATE KEY-----"
PEM = KEY.replace("ENCRYPTED PRIVATE KEY", "CERTIFICATE")
FUNCTION = {TOKEN: "json:loads"}
HANDLER = "kafka.sasl.login.callback.handler.class"
VALIDATOR, RETRIEVER = (f"kafka.sasl.oauthbearer.jwt.{each}.class" for each in ("validator", "retriever"))

BROKER = "b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
IAM = OAUTH | {"kafka.bootstrap.servers": BROKER, "kafka.sasl.mechanism": "AWS_MSK_IAM"}
IAM_HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
MSK_OAUTH = OAUTH | {"kafka.bootstrap.servers": BROKER, HANDLER: IAM_HANDLER}
JAAS, CLIENT_HANDLER = "kafka.sasl.jaas.config", "kafka.sasl.client.callback.handler.class"
IAM_MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
PASSWORD = 'a.PlainLoginModule required username="u" password="s3cret";'

pytestmark = pytest.mark.usefixtures("aws")


def line(settings: str) -> dict[str, str]:
    return {JAAS: f"{PACKAGE}OAuthBearerLoginModule required {settings};"}


def iam(settings: str) -> dict[str, str]:
    return IAM | {JAAS: f"{IAM_MODULE} {settings};"}


def signer(**settings: Any) -> MskIamTokens:
    """What makes the tokens of a cluster in the region of ``BROKER``, or in another one."""
    return MskIamTokens(MskIam(**{"region": "eu-west-1", **settings}))


def provider(given: dict[str, str]) -> tokens.TokenProvider | None:
    sasl = parse_options(given).with_client_id("me").wire.sasl
    assert isinstance(sasl, SaslSignIn)
    token_provider = sasl.credentials.token_provider
    assert sasl.credentials == Sasl("OAUTHBEARER", token_provider=token_provider)
    assert pickle.loads(pickle.dumps(sasl)) == sasl
    return token_provider


def test_java_options_reach_the_token_provider(authority: Authority) -> None:
    login = (
        'clientId="orders" clientSecret="s3cret" scope="a b" extension_logicalCluster="lkc-1"'
        f' extension_identityPoolId="pool-1" ssl.truststore.type="PEM" ssl.truststore.location="{authority.file}"'
    )
    of_requests = {"connect.timeout.ms": "1000", "read.timeout.ms": "2000"}
    of_requests |= {"retry.backoff.ms": "300", "retry.backoff.max.ms": "4000"}
    of_window = {"window.factor": "0.75", "window.jitter": "0.1", "min.period.seconds": "30", "buffer.seconds": "120"}
    java = {HANDLER: f"{PACKAGE}OAuthBearerLoginCallbackHandler"}
    java |= {f"kafka.sasl.login.{name}": text for name, text in of_requests.items()}
    java |= {f"kafka.sasl.login.refresh.{name}": text for name, text in of_window.items()}
    claims = {"header.urlencode": "true", "sub.claim.name": "azp", "scope.claim.name": "scp"}
    java |= {f"kafka.sasl.oauthbearer.{name}": text for name, text in claims.items()}
    tls = Tls(ca_file=str(authority.file), in_jaas_config=True)
    extensions = (("identityPoolId", "pool-1"), ("logicalCluster", "lkc-1"))
    header, times, window = True, (1.0, 2.0, 0.3, 4.0), RefreshWindow(0.75, 0.1, 30.0, 120.0)
    assert provider(ENDPOINT | java | line(login)) == ClientTokens(
        ClientCredentials(URL, "orders", Secret("s3cret"), tls, "a b", extensions, header, *times, window, "azp", "scp")
    )


def test_options_take_precedence_over_the_jaas_config_as_in_java() -> None:
    client = ClientCredentials(URL, "orders", Secret("s3cret"), Tls(in_jaas_config=True))
    plain = ClientTokens(client)
    assert provider(CLIENT) == plain
    assert provider(CLIENT | {SECRET: " s3cret\n"}) == plain
    assert provider(CLIENT | line("")) == plain
    assert provider(CLIENT | line('clientId="old" clientSecret="old"')) == plain
    assert provider(ENDPOINT | {ID: "orders"} | line('clientId="old" clientSecret="s3cret"')) == plain
    scope = {"kafka.sasl.oauthbearer.scope": "new"}
    assert provider(CLIENT | scope | line('scope="old"')) == ClientTokens(replace(client, scope="new"))


def test_a_first_backoff_of_token_requests_above_the_maximum_is_the_maximum() -> None:
    backoffs = {"kafka.sasl.login.retry.backoff.ms": "5000", "kafka.sasl.login.retry.backoff.max.ms": "2000"}
    tokens = provider(CLIENT | backoffs)
    assert isinstance(tokens, ClientTokens)
    client = tokens.client
    assert (client.retry_backoff, client.retry_backoff_max) == (2.0, 2.0)


def test_a_url_may_be_a_file_or_http(tmp_path: Path) -> None:
    token = tmp_path / "a token?"
    token.write_text("t0ken")
    file = {URL_NAME: f"file://{tmp_path}/a%20token%3F"}
    assert provider(OAUTH | file) == FileTokens(str(token))
    assert provider(OAUTH | file | line('extension_a="b"')) == FileTokens(str(token), (("a", "b"),))
    assert provider(OAUTH | {URL_NAME: f"FILE://{tmp_path}/a%20token%3F"}) == FileTokens(str(token))
    http = ClientTokens(ClientCredentials("http://idp:8080/t", "orders", Secret("s3cret")))
    assert provider(CLIENT | {URL_NAME: http.client.endpoint}) == http
    assert provider(OAUTH | FUNCTION) == FunctionTokens("json:loads")


def test_javas_classes_are_accepted() -> None:
    for option, name in (
        *((HANDLER, f"{package}OAuthBearerLoginCallbackHandler") for package in (PACKAGE, *OTHER_PACKAGES)),
        *((RETRIEVER, PACKAGE + each) for each in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever")),
        *((VALIDATOR, PACKAGE + each) for each in ("DefaultJwtValidator", "ClientJwtValidator")),
    ):
        assert provider(CLIENT | {option: name}) == provider(CLIENT), name


def test_both_forms_of_javas_library_sign_tokens_with_and_without_its_classes() -> None:
    for given in (
        IAM | {"kafka.sasl.mechanism": "aws_msk_iam"},
        IAM | {JAAS: f"{IAM_MODULE};", CLIENT_HANDLER: "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
        MSK_OAUTH,
        MSK_OAUTH | line("") | {CLIENT_HANDLER: MSK_OAUTH[HANDLER]},
    ):
        assert provider(given) == signer()


def test_the_jaas_config_names_a_profile_or_a_role() -> None:
    assert provider(iam('awsProfileName="orders"')) == signer(profile="orders")
    assert provider(iam("awsDebugCreds=true")) == signer(log_identity=True)
    assert provider(iam('awsDebugCreds="false" awsAddDefaultProviders="false"')) == signer()
    arn = "arn:aws:iam::123456789012:role/msk_client_role"
    assert provider(iam(f'awsRoleArn="{arn}"')) == signer(role_arn=arn)
    more = f'awsRoleArn="{arn}" awsRoleSessionName="producer" awsRoleExternalId="e-1" awsStsRegion="us-west-2"'
    whole = signer(role_arn=arn, role_session_name="producer", role_external_id="e-1", sts_region="us-west-2")
    assert provider(iam(more)) == provider(MSK_OAUTH | line(more)) == whole


def test_the_region_is_in_the_names_of_brokers(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_REGION", "sa-east-1")
    for servers, region in (
        ("B-1.ORDERS.C2.KAFKA.AP-SOUTHEAST-2.AMAZONAWS.COM:9098", "ap-southeast-2"),
        ("b-1-public.orders.abc123.c2.kafka.us-gov-west-1.amazonaws.com.:9198", "us-gov-west-1"),
        ("boot-abc.c1.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-1.orders.abc123.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("b-1.orders.abc123.c2.kafka.eusc-de-east-1.amazonaws.eu:9098", "eusc-de-east-1"),
        (f"10.0.0.1:9098,{BROKER}", "eu-west-1"),
    ):
        assert provider(IAM | {"kafka.bootstrap.servers": servers}) == signer(region=region)


def test_the_region_may_be_that_of_the_environment_or_the_profile(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = IAM | {"kafka.bootstrap.servers": "kafka.my-kafka-1.example.com:9098"}
    with pytest.raises(OptionError, match=r"region.* is unknown: no name in 'kafka\.bootstrap\.servers'.*AWS_REGION"):
        provider(given)
    profile = given | {JAAS: f'{IAM_MODULE} awsProfileName="orders";'}
    (tmp_path / "config").write_text("[default]\nregion=eu-south-1\n[profile orders]\nregion=eu-south-2\n")
    assert provider(profile) == signer(region="eu-south-2", profile="orders")
    assert provider(given) == signer(region="eu-south-1")
    aws.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert provider(given) == signer(region="eu-north-1")
    aws.setenv("AWS_REGION", "sa-east-1")
    assert provider(given) == signer(region="sa-east-1")


# fmt: off
MISTAKES = [
    (OAUTH, "token.endpoint.url' is missing.*Or set .*token.provider' to a function"),
    (ENDPOINT, "client.id' is missing. Set it, or clientId in 'kafka.sasl.jaas.config'"),
    (ENDPOINT | FUNCTION, "token.endpoint.url' has no effect with 'kafka.sasl.oauth.*token.provider'"),
    (OAUTH | FUNCTION | line('clientSecret="s3cret"'), "jaas.config' has no effect with"),
    (CLIENT | {"kafka.sasl.username": "u"}, "'kafka.sasl.username' has no effect"),
    (ENDPOINT | line('clientId="a" clientSecret="s3cret"') | {"kafka.sasl.mechanism": "SCRAM-SHA-256"},
     "has the module OAuthBearerLoginModule, and 'kafka.sasl.mechanism' is SCRAM"),
    (CLIENT | {HANDLER: "com.example.Handler"}, "com.example.Handler.*OAuthBearerLoginCallbackHandler.*token.provider"),
    (CLIENT | {RETRIEVER: f"{PACKAGE}JwtBearerJwtRetriever"},
     "ClientCredentialsJwtRetriever.*token.provider' to a function"),
    (CLIENT | {RETRIEVER: f"{PACKAGE}FileJwtRetriever"}, "is no file"),
    (CLIENT | {VALIDATOR: f"{PACKAGE}BrokerJwtValidator"}, "the brokers validate the tokens"),
    (CLIENT | line('ssl.truststore.password="s3cret"'), "jaas.config.*must be a JAAS config without ssl.truststore.p"),
    (CLIENT | line('ssl.truststore.type="JKS"'), "ssl.truststore.type is PEM.*keytool"),
    (CLIENT | line('ssl.truststore.location="/no/such.pem"'),
     "The file '/no/such.pem' of 'ssl.truststore.location' in 'kafka.sasl.jaas.config' cannot be read"),
    (OAUTH | {TOKEN: "eyJhbGciOiJS.s3cret.x"}, "token.provider' has an invalid value.*It must be module:function, for"),
    (OAUTH | {TOKEN: "no_such:f"}, "It must be module:function, and the import .*'no_such'"),
    (CLIENT | {"kafka.sasl.login.read.timeout.ms": "eyJhbGciOiJ.s3cret"}, "read.timeout.ms' has an invalid value"),
    (CLIENT | {URL_NAME: "https://orders:s3/cret@login.example.com/t"}, "endpoint.url' has an invalid value.*https"),
    (CLIENT | {URL_NAME: "ftp://login.example.com/t?key=s3cret"}, "endpoint.url' has an invalid value.*https"),
    (CLIENT | {SECRET: " \n"}, "client.secret' has an invalid value.*It must be a text that is not blank"),
    (CLIENT | line('clientID="s3cret"'), r"unknown setting clientID \(did you mean clientId\?\)"),
    (CLIENT | line('extention_logicalCluster="s3cret"'), r"extention_logicalCluster \(did you mean extension_NAME"),
    (OAUTH | FILE | {SECRET: "s3cret"}, "client.secret' has no effect with a file in '.*endpoint.url'"),
    (OAUTH | FILE | line('clientSecret="s3cret"'), "jaas.config' has settings without effect, because .* a file"),
    (OAUTH | {URL_NAME: "file:///a?s3cret"}, "a file URL in which %3F stands for"),
    (OAUTH | {URL_NAME: "FILE:///no/such"}, "'/no/such' of .*endpoint.url' cannot be read on"),
    (CLIENT | {URL_NAME: "HTTPS://idp/t"} | line('ssl.truststore.location="/no/such.pem"'),
     "'/no/such.pem' of 'ssl.truststore.location' in 'kafka.sasl.jaas.config' cannot be read"),
    (CLIENT | {URL_NAME: "http://idp/t"} | line('ssl.enabled.protocols="TLSv1.3"'), "is not https. Write https"),
    (CLIENT | line('ssl.key.password="s3cret"'), "'ssl.key.password' in .*jaas.config' is set without a key"),
    (CLIENT | line(f'ssl.keystore.certificate.chain="{PEM}"'), "chain' in .* is set without 'ssl.keystore.key' in"),
    (CLIENT | line(f'ssl.truststore.location="/a" ssl.truststore.certificates="{PEM}"'),
     "'ssl.truststore.location' in .*jaas.config' and 'ssl.truststore.certificates' in .* are set"),
    (CLIENT | line(f'ssl.keystore.key="{KEY}"'), "'ssl.keystore.key' in .* is set without 'ssl.keystore.cert"),
    (CLIENT | line(f'ssl.keystore.location="/a" ssl.keystore.key="{KEY}" ssl.keystore.certificate.chain="{PEM}"'),
     "'ssl.keystore.location' in .*jaas.config' and 'ssl.keystore.key' in .* are set"),
    (CLIENT | line('extension_auth="s3cret"'), "not the name auth"),
    (CLIENT | line('extension_a1="s3cret"'), "names of letters"),
    (CLIENT | line('extension_a="s3cretä"'), "printable ASCII text in extension_a"),
    (OAUTH | line('unsecuredLoginStringClaim_sub="s3cret"'), "unsecured tokens"),
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
    (MSK_OAUTH | line('clientSecret="s3cret"'), "'kafka.sasl.jaas.config'"),
    (IAM | line(""),
     "OAuthBearerLoginModule, and 'kafka.sasl.mechanism' is AWS_MSK_IAM.*OAUTHBEARER"),
    (MSK_OAUTH | {JAAS: f"{IAM_MODULE};"}, "IAMLoginModule, and 'kafka.sasl.mechanism' is OAUTHBEARER.*to AWS_MSK_IAM"),
    (IAM | {JAAS: PASSWORD}, "PlainLoginModule or .*, and .* is AWS_MSK_IAM.*PLAIN or SCRAM"),
    (IAM | FUNCTION, "token.provider' has no effect.*AWS_MSK_IAM"),
    (MSK_OAUTH | FUNCTION, "token.provider' has no effect"),
    (MSK_OAUTH | {HANDLER: "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"}, "'Google Cloud'"),
    (MSK_OAUTH | {HANDLER: "a.Handler"}, "'a.Handler'.*token.provider'"),
    (IAM | {CLIENT_HANDLER: "a.Handler"}, "'a.Handler'.*IAMClientCallbackHandler"),
]
# fmt: on


@pytest.mark.parametrize(("given", "says"), MISTAKES)
def test_the_error_names_the_option_to_change(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        parse_options(given)
    assert not re.search("s3/?cret", str(raised.value))


def test_the_error_without_the_signer_names_the_package(aws: pytest.MonkeyPatch) -> None:
    aws.setattr("importlib.util.find_spec", lambda name: None)
    for given in (IAM, MSK_OAUTH):
        with pytest.raises(OptionError, match=r"pip install 'spark_group_source\[msk\]'"):
            provider(given)
