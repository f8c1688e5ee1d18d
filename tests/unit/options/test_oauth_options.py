"""OAuth options as users of Kafka's Java client write them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.text import Secret
from spark_group_source.wire.settings import Tls
from spark_group_source.wire.tokens import ClientCredentials, FileTokens, FunctionTokens, RefreshWindow, TokenProvider
from tests.certificates import Authority

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
URL = "https://login.example.com/oauth2/token"
OAUTH = {
    "kafka.bootstrap.servers": "b1:9092",
    "kafka.group.id": "g",
    "subscribe": "t",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
}
TOKEN, URL_NAME = (f"kafka.sasl.oauthbearer.token.{each}" for each in ("provider", "endpoint.url"))
ENDPOINT = OAUTH | {URL_NAME: URL}
ID, SECRET = (f"kafka.sasl.oauthbearer.client.credentials.client.{each}" for each in ("id", "secret"))
CLIENT = ENDPOINT | {ID: "orders", SECRET: "s3cret"}
FILE = {URL_NAME: "file:///var/run/token"}
PEM = "-----BEGIN ENCRYPTED PRIVATE KEY-----s3cret-----END ENCRYPTED PRIVATE KEY-----"
FUNCTION = {TOKEN: "json:loads"}
HANDLER, VALIDATOR, RETRIEVER = (
    "kafka.sasl.login.callback.handler.class",
    "kafka.sasl.oauthbearer.jwt.validator.class",
    "kafka.sasl.oauthbearer.jwt.retriever.class",
)


def line(settings: str) -> dict[str, str]:
    return {"kafka.sasl.jaas.config": f"{PACKAGE}OAuthBearerLoginModule required {settings};"}


def provider(given: dict[str, str]) -> TokenProvider | None:
    sasl = parse_options(given).with_client_id("me").wire.sasl
    assert sasl is not None
    assert (sasl.username, sasl.password) == (None, None)
    assert pickle.loads(pickle.dumps(sasl)) == sasl
    return sasl.token_provider


def test_java_options_reach_the_token_provider(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    login = (
        'clientId="orders" clientSecret="s3cret" scope="a b" extension_logicalCluster="lkc-1"'
        f' extension_identityPoolId="pool-1" ssl.truststore.type="PEM" ssl.truststore.location="{authority.file}"'
    )
    names = {
        "callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
        "connect.timeout.ms": "1000",
        "read.timeout.ms": "2000",
        "retry.backoff.ms": "300",
        "retry.backoff.max.ms": "4000",
        "refresh.window.factor": "0.75",
        "refresh.window.jitter": "0.1",
        "refresh.min.period.seconds": "30",
        "refresh.buffer.seconds": "120",
    }
    java = {f"kafka.sasl.login.{name}": text for name, text in names.items()}
    claims = {"header.urlencode": "true", "sub.claim.name": "azp", "scope.claim.name": "scp"}
    java |= {f"kafka.sasl.oauthbearer.{name}": text for name, text in claims.items()}
    assert provider(ENDPOINT | java | line(login)) == ClientCredentials(
        URL,
        "orders",
        Secret("s3cret"),
        Tls(ca_file=str(authority.file), in_login_line=True),
        "a b",
        (("identityPoolId", "pool-1"), ("logicalCluster", "lkc-1")),
        True,
        1.0,
        2.0,
        0.3,
        4.0,
        RefreshWindow(0.75, 0.1, 30.0, 120.0),
        "azp",
        "scp",
    )


def test_options_take_precedence_over_the_login_line_as_in_java() -> None:
    plain = ClientCredentials(URL, "orders", Secret("s3cret"), Tls(in_login_line=True))
    assert provider(CLIENT) == plain
    assert provider(CLIENT | {SECRET: " s3cret\n"}) == plain
    assert provider(CLIENT | line("")) == plain
    assert provider(CLIENT | line('clientId="old" clientSecret="old"')) == plain
    assert provider(ENDPOINT | {ID: "orders"} | line('clientId="old" clientSecret="s3cret"')) == plain
    assert provider(CLIENT | {"kafka.sasl.oauthbearer.scope": "new"} | line('scope="old"')) == ClientCredentials(
        URL, "orders", Secret("s3cret"), Tls(in_login_line=True), "new"
    )


def test_a_url_may_be_a_file_or_http(tmp_path: Path) -> None:
    token = tmp_path / "a token?"
    token.write_text("t0ken")
    file = {URL_NAME: f"file://{tmp_path}/a%20token%3F"}
    assert provider(OAUTH | file) == FileTokens(str(token))
    assert provider(OAUTH | file | line('extension_a="b"')) == FileTokens(str(token), (("a", "b"),))
    assert provider(OAUTH | {URL_NAME: f"FILE://{tmp_path}/a%20token%3F"}) == FileTokens(str(token))
    assert provider(CLIENT | {URL_NAME: "http://idp:8080/t"}) == ClientCredentials(
        "http://idp:8080/t", "orders", Secret("s3cret")
    )
    assert provider(OAUTH | FUNCTION) == FunctionTokens("json:loads")


def test_javas_classes_are_accepted() -> None:
    handler = f"{PACKAGE}OAuthBearerLoginCallbackHandler"
    names = [
        *((HANDLER, each) for each in (handler, handler.replace("oauthbearer.", "oauthbearer.secured."))),
        (HANDLER, f"kafkashaded.{handler}"),
        *((RETRIEVER, PACKAGE + each) for each in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever")),
        *((VALIDATOR, PACKAGE + each) for each in ("DefaultJwtValidator", "ClientJwtValidator")),
    ]
    for option, name in names:
        assert provider(CLIENT | {option: name}) == provider(CLIENT), name


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
    (CLIENT | line(f'ssl.keystore.key="{PEM}"'), "'ssl.keystore.key' in .* is set without 'ssl.keystore.cert"),
    (CLIENT | line(f'ssl.keystore.location="/a" ssl.keystore.key="{PEM}" ssl.keystore.certificate.chain="{PEM}"'),
     "'ssl.keystore.location' in .*jaas.config' and 'ssl.keystore.key' in .* are set"),
    (CLIENT | line('extension_auth="s3cret"'), "not the name auth"),
    (CLIENT | line('extension_a1="s3cret"'), "names of letters"),
    (CLIENT | line('extension_a="s3cretä"'), "printable ASCII text in extension_a"),
    (OAUTH | line('unsecuredLoginStringClaim_sub="s3cret"'), "unsecured tokens"),
]
# fmt: on


@pytest.mark.parametrize(("given", "says"), MISTAKES)
def test_the_error_names_the_option_to_change(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        parse_options(given)
    assert not re.search("s3/?cret", str(raised.value))
