"""Security options: load() rejects contradictions, and no error shows a secret. A JAAS config is read as in Java."""

from __future__ import annotations

import pickle
import ssl
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from spark_group_source.auth.broker_tls import BrokerTls
from spark_group_source.auth.jaas import PasswordLogin, parse_jaas
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.auth.tls import Tls
from spark_group_source.errors import OptionError
from spark_group_source.fetch.task import FetchTask
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.spark.schema import source_schema, to_arrow_schema
from spark_group_source.text import Secret
from spark_group_source.wire.security import SignIn, TlsLayer
from tests.certificates import Authority, parts
from tests.unit.options.test_options import GOOD

SSL = GOOD | {"kafka.security.protocol": "SSL"}
SASL = GOOD | {"kafka.security.protocol": "SASL_PLAINTEXT"}
SCRAM = SASL | {"kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.username": "alice"}
ALICE = SCRAM | {"kafka.sasl.password": "s3cret"}
KEY, CHAIN = "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain"
JAAS = 'a.ScramLoginModule required username="alice" password="s3cret";'


@pytest.fixture(scope="module")
def client(authority: Authority) -> Path:
    return authority.issue("client", file="client.pem")


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Path:
    """A client's key and certificate, with the password that is nowhere to be seen."""
    return authority.issue("client", file="encrypted.pem", password="s3cret")


def in_texts(file: Path) -> dict[str, str]:
    """The options for the key and the certificates in a file."""
    key, chain = parts(file)
    return {KEY: key, CHAIN: chain}


def wire(given: dict[str, str]) -> tuple[TlsLayer | None, SignIn | None]:
    made = parse_options(given).with_client_id("me").wire
    return made.tls, made.sasl


def test_credentials_are_a_jaas_config_or_two_options() -> None:
    assert wire(GOOD | {"kafka.security.protocol": "plaintext"}) == wire(GOOD) == (None, None)
    sasl = SaslSignIn(Sasl("SCRAM-SHA-512", "alice", Secret("s3cret")))
    assert wire(ALICE) == (None, sasl)
    in_java = SASL | {"kafka.sasl.mechanism": "scram-sha-512", "KAFKA.sasl.JAAS.config": JAAS}
    assert wire(in_java) == (None, sasl)


def test_tls_keys_and_certificates_are_files_or_texts(authority: Authority, client: Path, encrypted: Path) -> None:
    ca = str(authority.file)
    files = {"kafka.ssl.truststore.location": ca, "kafka.ssl.keystore.location": str(client)}
    files |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "pem"}
    assert wire(SSL | files) == (BrokerTls(Tls(ca_file=ca, key_file=str(client))), None)
    key, chain = parts(encrypted)
    authorities = authority.file.read_text().strip()
    texts = in_texts(encrypted) | {
        "kafka.ssl.truststore.certificates": authorities.replace("\n", "\\n"),
        "kafka.ssl.key.password": "s3cret",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.enabled.protocols": "TLSv1.3",
    }
    pem = Tls(ca_text=authorities, key_text=Secret(key.strip()), chain_text=chain.strip())
    told = replace(pem, key_password=Secret("s3cret"), check_host_name=False, versions=("TLSv1.3",))
    assert wire(SSL | texts) == (BrokerTls(told), None)


def test_an_encrypted_key_needs_its_password(encrypted: Path) -> None:
    in_file = {"kafka.ssl.keystore.location": str(encrypted)}
    for kind, given in (("key", in_texts(encrypted)), ("location", in_file)):
        assert wire(SSL | given | {"kafka.ssl.key.password": "s3cret"})[0]
        for wrong in ({}, {"kafka.ssl.key.password": "s4cret"}):
            with pytest.raises(OptionError, match=f"kafka.ssl.keystore.{kind}.*'kafka.ssl.key.password' if") as raised:
                parse_options(SSL | given | wrong)
            assert "s4cret" not in str(raised.value)


# fmt: off
MISTAKES = [
    (GOOD | {"kafka.security.protocol": "SASL_TLS"}, "'SASL_TLS'.*did you mean SASL_SSL"),
    (SASL | {"kafka.sasl.mechanism": "SCRAM-SHA-521"}, r"\(did you mean SCRAM-SHA-512\?\)\."),
    (SASL, "'kafka.sasl.mechanism' is missing.*PLAIN, SCRAM"),
    (SASL | {"kafka.sasl.mechanism": "PLAIN"}, "'kafka.sasl.username' is missing.*PLAIN needs it"),
    (SCRAM, "'kafka.sasl.password' is missing"),
    (ALICE | {"kafka.sasl.kerberos.service.name": "kafka"}, "has no effect with 'kafka.sasl.mechanism' SCRAM"),
    (ALICE | {"kafka.sasl.jaas.config": JAAS}, "Options.*are set.*Set only one"),
    (ALICE | {"kafka.security.protocol": "SSL"},
     "'kafka.sasl.mechanism' has no effect.*SSL.*Set 'kafka.security.protocol' to SASL_"),
    (GOOD | {"kafka.ssl.key.password": "x"}, "'kafka.ssl.key.password' has no effect.*SSL or SASL_SSL"),
    (SSL | {"kafka.ssl.truststore.type": "JKS"}, "'JKS'.*keytool -list -rfc"),
    (SSL | {"kafka.ssl.keystore.type": "PKCS12"}, "openssl pkcs12 -in client.p12 -out client.pem"),
    (SSL | {"kafka.ssl.keystore.type": "BKS"}, "one of PEM"),
    (SSL | {"kafka.ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
    (SSL | {"kafka.ssl.endpoint.identification.algorithm": "ldaps"}, "https, or an empty text"),
    (SSL | {"kafka.ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "belongs to TLS 1.3, whose suites are all enabled"),
    (SSL | {"kafka.ssl.cipher.suites": "TLS_NO_WITH_SUCH"}, "at least one of which OpenSSL"),
    (SSL | {"kafka.ssl.truststore.location": "/no/such.pem"}, "'/no/such.pem'.*No such file.*every executor"),
    (SSL | {"kafka.ssl.truststore.certificates": "MIIB"}, "PEM text"),
    (SCRAM | {"kafka.sasl.password": "s3cret\n"}, "line break at its end.*strip"),
    (SASL | {"kafka.sasl.mechanism": JAAS}, "'kafka.sasl.mechanism' has an invalid value.*one of PLAIN"),
    (GOOD | {"kafka.bootstrap.servers": "SASL_SSL://alice:s3cret@b1:9092"}, "has an invalid value.*host:port"),
    ({**GOOD, "subscribe": JAAS}, "'subscribe' has an invalid value.*letters, digits"),
    (GOOD | {"startingOffsets": '{"t": {"password=s3cret": 1}}'}, "'startingOffsets' has an invalid value.*JSON"),
]
# fmt: on


@pytest.mark.parametrize(("given", "says"), MISTAKES)
def test_the_error_names_the_bad_option_and_the_fix(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        parse_options(given)
    assert "s3cret" not in str(raised.value)


def test_the_error_for_a_store_says_that_it_is_not_a_pem_file(authority: Authority, tmp_path: Path) -> None:
    empty, der, jks = tmp_path / "empty.pem", tmp_path / "ca.der", tmp_path / "trust.jks"
    empty.touch()
    der.write_bytes(ssl.PEM_cert_to_DER_cert(authority.file.read_text()))
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    for name, file, says in (
        ("truststore", tmp_path, rf"'{tmp_path}' of OPTION.*Is a directory"),
        ("truststore", empty, r"empty\.pem' of OPTION cannot be used.*PEM is"),
        ("truststore", jks, "is JKS, not PEM.*keytool -list -rfc"),
        ("truststore", der, r"ca\.der' of OPTION is DER, not PEM.*openssl x509 -inform der"),
        ("keystore", der, r"ca\.der' of OPTION is DER, not PEM.*openssl pkey -inform der"),
    ):
        option = f"kafka.ssl.{name}.location"
        with pytest.raises(OptionError, match=says.replace("OPTION", f"'{option}'")):
            parse_options(SSL | {option: str(file)})
    # As keytool -list -rfc writes it.
    jks.write_text(f"Keystore type: JKS\n\nAlias name: a\n{authority.file.read_text()}\n*******\n")
    assert parse_options(SSL | {"kafka.ssl.truststore.location": str(jks)})


@pytest.mark.parametrize("password", ["s3cret" * 200, "s3cret\udc80"], ids=["too long", "no text"])
def test_a_key_password_that_openssl_rejects_is_an_error_without_the_password(encrypted: Path, password: str) -> None:
    given = {"kafka.ssl.keystore.location": str(encrypted), "kafka.ssl.key.password": password}
    with pytest.raises(OptionError, match=r"'kafka\.ssl\.key\.password' is not UTF-8 text") as raised:
        parse_options(SSL | given)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__cause__ is None


def test_the_error_for_gssapi_without_its_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    given = SASL | {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install gssapi"):
        parse_options(given)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    assert wire(given) == (None, SaslSignIn(Sasl("GSSAPI", kerberos_service="kafka")))


def test_a_key_needs_its_chain_and_must_be_encrypted(authority: Authority, client: Path, encrypted: Path) -> None:
    other = in_texts(authority.issue("other", file="other.pem"))
    given = SSL | in_texts(encrypted) | {"kafka.ssl.key.password": "s3cret"}
    without_chain = {name: text for name, text in given.items() if name != CHAIN}
    for wrong, says in (
        (without_chain, r"without 'kafka\.ssl\.keystore\.certificate\.chain'"),
        (given | {CHAIN: other[CHAIN]}, "does not belong to the certificate"),
        (given | {"kafka.ssl.keystore.location": str(encrypted)}, r"location' and 'kafka\.ssl\.keystore\.key' are set"),
        (SSL | in_texts(client), "an encrypted key.*openssl pkcs8 -topk8"),
    ):
        with pytest.raises(OptionError, match=says):
            parse_options(wrong)


def test_a_private_key_in_the_wrong_option_is_not_shown(client: Path) -> None:
    key, _ = parts(client)
    for option in OPTIONS:
        with pytest.raises(OptionError) as raised:
            parse_options(SSL | {option.name: key})
        assert key.splitlines()[1] not in str(raised.value), option.name


def test_options_and_tasks_survive_pickling_and_never_show_a_secret(encrypted: Path) -> None:
    given = in_texts(encrypted) | {"kafka.ssl.key.password": "s3cret", "kafka.security.protocol": "SASL_SSL"}
    parsed = parse_options(ALICE | given)
    task = FetchTask((), parsed.with_client_id("me").wire, to_arrow_schema(source_schema(False)))
    in_java = parse_options(SASL | {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": JAAS})
    for each in (parsed, task, in_java):
        shown = f"{each} {each!r} {[each]}"
        assert "s3cret" not in shown
        assert given[KEY].splitlines()[1] not in shown
        assert pickle.loads(pickle.dumps(each)) == each
    assert isinstance(task.wire.sasl, SaslSignIn)
    assert task.wire.sasl.credentials.password == Secret("s3cret")


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required "
USER_ALICE = 'username="alice" '
LOGIN = PLAIN_MODULE + USER_ALICE


def test_user_name_and_password_are_read_as_java_reads_them() -> None:
    for line, password in (
        (PLAIN_MODULE + 'username="alice" password="pw";', "pw"),
        (SCRAM_MODULE + "password='pw' username='alice';", "pw"),
        (PLAIN_MODULE + "username=alice password=pw-1_$;", "pw-1_$"),
        (PLAIN_MODULE + 'username = "alice"\n  password = "pw" ;\n', "pw"),
        (LOGIN + r'password="a\"b";', 'a"b'),
        (LOGIN + r'password="a\\b\tc\x";', "a\\b\tcx"),
        (LOGIN + r'password="\101\1019";', "AA9"),
        (LOGIN + """password="it's; a=b // no comment";""", "it's; a=b // no comment"),
        (LOGIN + """password='say "x"';""", 'say "x"'),
        (LOGIN + 'password="pässwörd€";', "pässwörd€"),
        (LOGIN + 'password="";', ""),
        (LOGIN + 'serviceName="kafka" password="pw";', "pw"),
        ("/* the login */ " + LOGIN + '// of alice\n password="pw";', "pw"),
        ("kafkashaded." + LOGIN + 'password="pw";', "pw"),
        (LOGIN.replace(" ", r"\n ") + r'\n  password="pw";\n', "pw"),
        (LOGIN.replace(" ", " \\\n  ") + 'password="pw";', "pw"),
        (LOGIN.replace(" ", "\\\\n ") + 'password="pw";', "pw"),
        ("\ufeff" + LOGIN + 'password="pw";\r\n', "pw"),
        (LOGIN + r'password="p\nw";', "p\nw"),
        (PLAIN_MODULE.replace("required", "Required") + USER_ALICE + 'password="pw";', "pw"),
    ):
        assert parse_jaas(line) == PasswordLogin("alice", Secret(password))


def test_an_invalid_line_is_an_error_with_the_fix_and_without_a_value() -> None:
    for line, says in (
        ("", "must end with a semicolon"),
        (";", "must end with a semicolon"),
        ("alice:s3cret", "must end with a semicolon"),
        (LOGIN + 'password="s3cret"', "must end with a semicolon"),
        (LOGIN + 'password="s3cret;', "quote is not closed"),
        (LOGIN + "password=s3/cret;", "not in quotes"),
        (LOGIN + "password=s3cret==;", "name=value pairs"),
        (LOGIN + "password s3cret;", "name=value pairs"),
        (LOGIN + "password=s3\\cret;", "not in quotes"),
        ("'" + LOGIN + 'password="s3cret";' + "'", "without quotes around the whole line"),
        ('"' + LOGIN.replace('"', '\\"') + 'password=\\"s3cret\\";"', "without quotes around the whole line"),
        (LOGIN + 'password="s3cret"; ' + LOGIN + 'password="s3cret";', "name=value pairs"),
        (PLAIN_MODULE + 'password="s3cret";', "username and password are required"),
        (LOGIN + ";", "username and password are required"),
        (PLAIN_MODULE.replace("required", "s3cret") + USER_ALICE + 'password="s3cret";', "'required' must follow"),
        (SCRAM_MODULE + USER_ALICE + 'password="s3cret" tokenauth="true";', "delegation tokens"),
        ("a.b.Krb5LoginModule required keyTab='s3cret';", "kafka.sasl.kerberos.service.name"),
        ("a.b.S3cretLoginModule required x='s3cret';", "a PlainLoginModule or ScramLoginModule"),
    ):
        with pytest.raises(ValueError, match=says) as raised:
            parse_jaas(line)
        assert "s3cret" not in str(raised.value)
