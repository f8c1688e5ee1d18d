"""Java's JAAS config has the same meaning as in Kafka's Java client, and no error shows a value."""

from __future__ import annotations

import pytest

from spark_group_source.options.logins import PasswordLogin, parse_jaas
from spark_group_source.text import Secret

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required "
ALICE = 'username="alice" '
LOGIN = PLAIN + ALICE


@pytest.mark.parametrize(
    ("line", "username", "password"),
    [
        (PLAIN + 'username="alice" password="pw";', "alice", "pw"),
        (SCRAM + "password='pw' username='alice';", "alice", "pw"),
        (PLAIN + "username=alice password=pw-1_$;", "alice", "pw-1_$"),
        (PLAIN + 'username = "alice"\n  password = "pw" ;\n', "alice", "pw"),
        (LOGIN + r'password="a\"b";', "alice", 'a"b'),
        (LOGIN + r'password="a\\b\tc\x";', "alice", "a\\b\tcx"),
        (LOGIN + r'password="\101\1019";', "alice", "AA9"),
        (LOGIN + """password="it's; a=b // no comment";""", "alice", "it's; a=b // no comment"),
        (LOGIN + """password='say "x"';""", "alice", 'say "x"'),
        (LOGIN + 'password="pässwörd€";', "alice", "pässwörd€"),
        (LOGIN + 'password="";', "alice", ""),
        (LOGIN + 'serviceName="kafka" password="pw";', "alice", "pw"),
        ("/* the login */ " + LOGIN + '// of alice\n password="pw";', "alice", "pw"),
        ("kafkashaded." + LOGIN + 'password="pw";', "alice", "pw"),
        (PLAIN.replace("required", "Required") + ALICE + 'password="pw";', "alice", "pw"),
    ],
)
def test_user_name_and_password_are_read_as_java_reads_them(line: str, username: str, password: str) -> None:
    assert parse_jaas(line) == PasswordLogin(username, Secret(password))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "must end with a semicolon"),
        (";", "must end with a semicolon"),
        ("alice:s3cret", "must end with a semicolon"),
        (LOGIN + 'password="s3cret"', "must end with a semicolon"),
        (LOGIN + 'password="s3cret;', "quote is not closed"),
        (LOGIN + "password=s3/cret;", "not in quotes"),
        (LOGIN + "password=s3cret==;", "name=value pairs"),
        (LOGIN + "password s3cret;", "name=value pairs"),
        (LOGIN + 'password="s3cret"; ' + LOGIN + 'password="s3cret";', "name=value pairs"),
        (PLAIN + 'password="s3cret";', "username and password are required"),
        (LOGIN + ";", "username and password are required"),
        (PLAIN.replace("required", "s3cret") + ALICE + 'password="s3cret";', "'required' must follow"),
        (SCRAM + ALICE + 'password="s3cret" tokenauth="true";', "delegation tokens"),
        ("a.b.Krb5LoginModule required keyTab='s3cret';", "kafka.sasl.kerberos.service.name"),
        ("a.b.S3cretLoginModule required x='s3cret';", "a PlainLoginModule or ScramLoginModule"),
    ],
)
def test_an_invalid_line_is_an_error_with_the_fix_and_without_a_value(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        parse_jaas(line)
    assert "s3cret" not in str(raised.value)
