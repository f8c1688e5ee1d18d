"""Names of cipher suites, and nothing else of OpenSSL's language: no suite without a certificate or encryption."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess

import pytest

from spark_group_source.auth.broker_tls import BrokerTls
from spark_group_source.auth.cipher_suites import cipher_suites
from spark_group_source.auth.tls import Tls
from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from tests.unit.options.test_options import GOOD

SSL = GOOD | {"kafka.security.protocol": "SSL"}

NAMES = {
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8": "ECDHE-ECDSA-AES128-CCM8",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "SSL_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": "DHE-RSA-AES256-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
}


@pytest.mark.parametrize("written", NAMES)
def test_cipher_suites_have_javas_or_openssls_names(written: str) -> None:
    tls = parse_options(SSL | {"kafka.ssl.cipher.suites": written}).wire.tls
    assert tls == BrokerTls(Tls(ciphers=(NAMES[written],)))


def test_a_list_is_separated_by_commas_and_leaves_out_what_openssl_does_not_have() -> None:
    listed = (
        " TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 ,,TLS_KEM_RSA_WITH_MARS_512,TLS_RSA_WITH_AES_256_CBC_SHA,AES256-SHA"
    )
    assert cipher_suites(listed) == ("ECDHE-RSA-AES256-GCM-SHA384", "AES256-SHA")
    with pytest.raises(ValueError, match="at least one of which OpenSSL"):
        cipher_suites("TLS_KEM_RSA_WITH_MARS_512,TLS_RSA_WITH_HIGH")
    with pytest.raises(ValueError, match="belongs to TLS 1.3, whose suites are all enabled"):
        cipher_suites("TLS_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")


def test_a_list_may_be_that_of_librdkafka_or_of_java() -> None:
    with_colons = "ECDHE-RSA-AES256-GCM-SHA384: AES256-SHA:TLS_RSA_WITH_AES_128_GCM_SHA256"
    assert cipher_suites(with_colons) == ("ECDHE-RSA-AES256-GCM-SHA384", "AES256-SHA", "AES128-GCM-SHA256")
    signal = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"
    assert cipher_suites(f"TLS_RSA_WITH_AES_256_CBC_SHA,{signal}") == ("AES256-SHA",)
    for none in (signal, ":", "", " , "):
        with pytest.raises(ValueError, match="names of cipher suites"):
            cipher_suites(none)


KEYWORDS = """
ALL COMPLEMENTOFALL COMPLEMENTOFDEFAULT DEFAULT HIGH MEDIUM LOW EXPORT EXP NULL eNULL aNULL ADH AECDH ECDHE kRSA aRSA
AES256 TLSv1.2 SSLv3 SUITEB128 PROFILE=SYSTEM @SECLEVEL=0 @STRENGTH !aNULL -AES256-SHA +AES256-SHA AES256-SHA:aNULL
AES256-SHA:@SECLEVEL=0 AECDH-AES256-SHA:@SECLEVEL=0 kECDHE+aNULL NO-SUCH-SUITE
"""
UNSAFE = """
AECDH-AES256-SHA ADH-AES128-GCM-SHA256 NULL-SHA256 NULL-MD5 ECDHE-RSA-NULL-SHA AECDH-NULL-SHA PSK-AES128-CBC-SHA
DHE-PSK-AES256-GCM-SHA384 RSA-PSK-AES128-CBC-SHA SRP-AES-128-CBC-SHA SRP-RSA-AES-256-CBC-SHA
TLS_ECDH_anon_WITH_AES_256_CBC_SHA TLS_DH_anon_WITH_AES_128_GCM_SHA256 TLS_RSA_WITH_NULL_SHA256
TLS_ECDHE_RSA_WITH_NULL_SHA SSL_RSA_EXPORT_WITH_RC4_40_MD5 SSL_DH_anon_EXPORT_WITH_DES40_CBC_SHA
TLS_PSK_WITH_AES_128_CBC_SHA TLS_SRP_SHA_WITH_AES_128_CBC_SHA TLS_KRB5_WITH_RC4_128_SHA TLS_NULL_WITH_NULL_NULL
"""


@pytest.mark.parametrize("bad", KEYWORDS.split() + UNSAFE.split())
def test_openssls_language_and_suites_without_certificate_or_encryption_are_errors(bad: str) -> None:
    for listed in (bad, f"ECDHE-RSA-AES256-GCM-SHA384,{bad}", f"{bad},TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"):
        with pytest.raises(OptionError, match="'kafka.ssl.cipher.suites'.*It must be (names of c|c)ipher suites"):
            parse_options(SSL | {"kafka.ssl.cipher.suites": listed})


def test_no_suite_of_this_openssl_without_certificate_or_encryption_passes() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    passed: list[str] = []
    for suite in context.get_ciphers():
        try:
            passed += cipher_suites(suite["name"])
        except ValueError:
            continue
    shown = {suite["name"]: suite["description"] for suite in context.get_ciphers()}
    assert len(passed) > 20
    assert [name for name in passed if re.search(r"Au=(None|PSK|SRP)|Enc=None|Kx=\w*PSK|Kx=SRP", shown[name])] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the names are those of the command openssl")
def test_every_iana_name_becomes_the_name_that_openssl_has_for_it() -> None:
    command = ["openssl", "ciphers", "-stdname", "ALL:@SECLEVEL=0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = [line.split()[0:3:2] for line in lines]
    converted = []
    for iana, name in pairs:
        try:
            converted.append((iana, name, cipher_suites(iana)))
        except ValueError:
            continue
    assert len(converted) > 20
    assert [each for each in converted if each[2] != (each[1],)] == []
