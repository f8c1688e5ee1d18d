"""PEM as secret stores, environment files and YAML hand it over: whatever Java's client reads, OpenSSL gets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from spark_group_source.auth import pem
from spark_group_source.auth.broker_tls import BrokerTls
from spark_group_source.auth.certificates import _load_keystore_file, ssl_context
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import certificates, private_key
from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.text import Secret
from tests.certificates import Authority, parts
from tests.unit.options.test_options import GOOD

SSL = GOOD | {"kafka.security.protocol": "SSL"}
TRUSTED = "kafka.ssl.truststore.certificates"
KEY, CHAIN, PASSWORD = "kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain", "kafka.ssl.key.password"


def each_line(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.splitlines())


WRITTEN: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "spaces": lambda text: text.replace("\n", " "),
    "tabs": lambda text: text.replace("\n", "\t"),
    "two spaces": lambda text: text.replace("\n", "  "),
    "no line breaks at all": lambda text: text.replace("\n", ""),
    "escaped": lambda text: text.replace("\n", "\\n"),
    "escaped twice": lambda text: text.replace("\n", "\\\\n"),
    "escaped as on Windows": lambda text: text.replace("\n", "\\r\\n"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "indented": each_line(lambda line: f"      {line}"),
    "trailing blanks": each_line(lambda line: f"{line}  "),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "continued lines of a properties file": lambda text: text.replace("\n", " \\\n    "),
    "escapes of a properties file": lambda text: text.replace("\n", "\\n\\\n"),
    "BOM": lambda text: f"\N{BOM}{text}",
    "double quotes": lambda text: f'"{text}"',
    "single quotes": lambda text: f"'{text}'",
    "quoted lines": each_line(lambda line: f'"{line}"'),
    "text around": lambda text: f"Bag Attributes\n    friendlyName: client\n{text}\nsubject=CN = client\n",
    "first hyphen not copied": lambda text: text[1:],
    "last hyphen not copied": lambda text: text[:-1],
    "six hyphens": lambda text: text.replace("-----", "------"),
    "other line length": lambda text: re.sub(r"(?<=[A-Za-z0-9+/=])\n(?=[A-Za-z0-9+/=])", "", text),
}


@pytest.fixture(scope="module")
def client(authority: Authority) -> tuple[str, str]:
    """An encrypted key, and its certificate with another one behind it."""
    key, chain = parts(authority.issue("client", file="encrypted.pem", password="s3cret"))
    return key.strip(), (chain.strip() + "\n" + authority.file.read_text()).strip()


@pytest.mark.parametrize("how", WRITTEN)
def test_texts_are_read_as_java_reads_them(authority: Authority, client: tuple[str, str], how: str) -> None:
    key, chain = client
    write = WRITTEN[how]
    given = {TRUSTED: authority.file.read_text().strip(), KEY: key, CHAIN: chain}
    written = {name: write(text) for name, text in given.items()} | {PASSWORD: "s3cret"}
    parsed = parse_options(SSL | written)
    assert parsed.wire.tls == parse_options(SSL | given | {PASSWORD: "s3cret"}).wire.tls
    assert isinstance(parsed.wire.tls, BrokerTls)
    assert (parsed.wire.tls.settings.chain_text or "").count("-----BEGIN CERTIFICATE-----") == 2


@pytest.mark.parametrize("how", WRITTEN)
def test_files_are_read_as_java_reads_them(
    authority: Authority, client: tuple[str, str], tmp_path: Path, how: str
) -> None:
    trusted, store = tmp_path / "ca.pem", tmp_path / "client.pem"
    trusted.write_text(WRITTEN[how](authority.file.read_text().strip()), encoding="utf-8", newline="")
    store.write_text(WRITTEN[how]("\n".join(client)), encoding="utf-8", newline="")
    given = {"kafka.ssl.truststore.location": str(trusted), "kafka.ssl.keystore.location": str(store)}
    parsed = parse_options(SSL | given | {PASSWORD: "s3cret"})
    assert isinstance(parsed.wire.tls, BrokerTls)
    context = ssl_context(parsed.wire.tls.settings)
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("how", ["as it is", "spaces", "escaped", "indented", "blank lines"])
def test_an_older_form_of_an_encrypted_key_keeps_its_headers(client: tuple[str, str], how: str) -> None:
    loaded = serialization.load_pem_private_key(client[0].encode(), b"s3cret")
    older = loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"s3cret"),
    ).decode()
    assert "DEK-Info" in older
    read = private_key(WRITTEN[how](older.strip())).text
    again = serialization.load_pem_private_key(read.encode(), b"s3cret")
    assert again.private_numbers() == loaded.private_numbers()  # type: ignore[union-attr]


def test_only_what_the_option_is_for_is_taken_from_a_text(client: tuple[str, str]) -> None:
    key, chain = client
    whole = f"{key}\n{chain}"
    assert certificates(whole) == chain
    assert private_key(whole).text == key
    assert pem.select(chain, pem.PRIVATE_KEY) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("\n", ","), "is not base64 between its markers: its line breaks"),
        (lambda text: text.replace("\n", "|"), "is not base64 between its markers: its line breaks"),
        (lambda text: text.replace("\n", "\n#"), "is not base64 between its markers: its line breaks"),
        (lambda text: text[:-100], "has no '-----END"),
        (lambda text: text.replace("-----", ""), "the text has no"),
        (lambda text: re.sub("-----.*?-----", "", text), "the markers are missing"),
        (lambda text: base64.b64encode(text.encode()).decode(), "the base64 of PEM: decode it once"),
        (lambda text: text.replace("-----BEGIN ", "-----BEGIN NEW "), "the text has no"),
    ],
)
def test_the_error_for_a_text_that_is_none_names_the_line_breaks_and_shows_nothing(
    client: tuple[str, str], change: Callable[[str], str], says: str
) -> None:
    for name, text in zip((KEY, CHAIN), client, strict=True):
        with pytest.raises(OptionError, match=says) as raised:
            parse_options(SSL | {name: change(text)})
        assert text.splitlines()[3][:12] not in str(raised.value)
        assert "with its line breaks or with spaces in their place" in str(raised.value)
        assert raised.value.__cause__ is None


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("changed", [0, 1])
def test_no_certificate_of_a_file_is_skipped(authority: Authority, tmp_path: Path, how: str, changed: int) -> None:
    """OpenSSL ignores a certificate whose marker is not on a line of its own, if another one can be read."""
    written = [authority.file.read_text().strip(), Authority(tmp_path, "other").file.read_text().strip()]
    written[changed] = WRITTEN[how](written[changed])
    file = tmp_path / "both.pem"
    file.write_text("\n".join(written), encoding="utf-8", newline="")
    assert len(ssl_context(Tls(ca_file=str(file))).get_ca_certs()) == 2


def test_the_chain_of_a_keystore_file_is_sent_whole(authority: Authority, tmp_path: Path) -> None:
    store, sent = tmp_path / "client.pem", list[str]()
    leaf = authority.issue("client", file="one_line_chain.pem").read_text()
    store.write_text(leaf + authority.file.read_text().replace("\n", " "))

    class Context:
        def load_cert_chain(self, path: str, password: str) -> None:
            sent.append(Path(path).read_text())

    _load_keystore_file(Context(), Tls(key_file=str(store)), str(store), "")  # type: ignore[arg-type]
    assert [text.count("\n-----BEGIN CERTIFICATE-----\n") for text in sent] == [2]


def test_other_text_in_a_file_keeps_it_as_it_is(authority: Authority, tmp_path: Path) -> None:
    """A comment may name the markers, and hold letters that are not UTF-8."""
    text = authority.file.read_text()
    for number, comment in enumerate(
        ("# -----BEGIN CERTIFICATE----- goes here", "# für alle", f"# {text.split()[-1]}")
    ):
        file = tmp_path / f"{number}.pem"
        for pem_text in (text, text.replace("\n", "\r\n")):
            file.write_text(f"{comment}\n{pem_text}", encoding="latin-1", newline="")
            assert len(ssl_context(Tls(ca_file=str(file))).get_ca_certs()) == 1
    file = tmp_path / "one_line.pem"  # another file, because the context of a former one would be kept
    file.write_text(f"# für alle\n{text.strip()}".replace("\n", " "), encoding="latin-1")
    assert len(ssl_context(Tls(ca_file=str(file))).get_ca_certs()) == 1


def test_a_trusted_certificate_of_openssl_is_one(authority: Authority) -> None:
    trusted = authority.file.read_text().replace(" CERTIFICATE", " TRUSTED CERTIFICATE")
    parsed = parse_options(SSL | {TRUSTED: trusted}).wire.tls
    assert isinstance(parsed, BrokerTls)
    assert len(ssl_context(parsed.settings).get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("which", "password", "says"),
    [
        ((0, 1), "wrong", "the password does not decrypt the private key"),
        ((0, 1), None, "the private key needs a password"),
        ((0,), "s3cret", "it has no certificate"),
        ((1,), None, "it has no private key"),
        ((), None, "PEM lib"),
    ],
)
def test_the_error_for_a_keystore_says_what_is_wrong(
    client: tuple[str, str], tmp_path: Path, which: tuple[int, ...], password: str | None, says: str
) -> None:
    file = tmp_path / "client.pem"
    file.write_text("\n".join(client[part] for part in which))
    with pytest.raises(OptionError, match=f"cannot be used: .*{says}"):
        ssl_context(Tls(key_file=str(file), key_password=None if password is None else Secret(password)))
    if len(which) == 2:
        given = {KEY: client[0], CHAIN: client[1]} | ({} if password is None else {PASSWORD: password})
        with pytest.raises(OptionError, match=says):
            parse_options(SSL | given)


def test_a_truststore_file_without_pem_is_an_error_of_openssl(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("-----BEGIN CERTIFICATE----- s3cret -----END CERTIFICATE-----")
    with pytest.raises(OptionError, match="PEM is needed.*with their line breaks") as raised:
        ssl_context(Tls(ca_file=str(file)))
    assert "s3cret" not in str(raised.value)
