"""Options in a properties file, as Kafka's tools accept with ``--command-config``: a command line shows no secret.

The format is that of ``java.util.Properties``. A name needs no prefix ``kafka.``, so a file for Kafka's tools works
unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from spark_group_source.errors import OptionError
from spark_group_source.options.table import OPTIONS

_NAMES = {option.name.lower(): option.name for option in OPTIONS}

_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)(?:[ \t\f]*[=:]|[ \t\f])?[ \t\f]*(.*)", re.DOTALL)
"""A name, the separator, and the value."""

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_options(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the options in a properties file. A name in the table of options is spelled as the table spells it.

    Raises:
        OptionError: the file cannot be read, or a line is malformed; the message shows no value.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"The options file '{os.fspath(path)}' cannot be read: {error.strerror}.",
            "Give the path of a properties file with lines such as security.protocol=SASL_SSL.",
        ) from None
    try:
        pairs = list(_pairs(_decoded(content)))
        for number, name, value in pairs:
            _check_name(number, name, value)
    except ValueError as error:
        raise OptionError(
            f"The options file '{os.fspath(path)}' is malformed: {error}.",
            "Write lines such as security.protocol=SASL_SSL, in UTF-8. A backslash at the end of a line continues its"
            " value; write \\\\ for a backslash.",
        ) from None
    return {name: value for _, name, value in pairs}


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # the encoding of Java's Properties


def _pairs(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value of each line.

    Raises:
        ValueError: a ``\\u`` is not followed by four hexadecimal digits; the message names the line.
    """
    for number, line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        assert match is not None  # each text has a name, perhaps an empty one
        try:
            name, value = _unescaped(match[1]), _unescaped(match[2])
        except ValueError:
            raise ValueError(f"line {number} has a \\u without four hexadecimal digits") from None
        yield number, _option_name(name), value


def _check_name(number: int, name: str, value: str) -> None:
    """Rejects a line that continues an earlier value, such as a key in PEM. It may be secret, so no error shows it."""
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,99}", name):
        raise ValueError(f"line {number} does not begin with the name of an option")
    if not value and name not in _NAMES.values():
        raise ValueError(f"line {number} has no value")


def _option_name(name: str) -> str:
    lower = name.lower()
    for written in (lower, f"kafka.{lower}"):
        if written in _NAMES:
            return _NAMES[written]
    return name


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its number, without comments and blank lines; a backslash at the end continues a line."""
    logical, begun_at = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(" \t\f")
        if begun_at == 0:
            if _is_blank_or_comment(line):
                continue
            begun_at = number
        if _continues(line):
            logical += line[:-1]
        else:
            yield begun_at, logical + line
            logical, begun_at = "", 0
    if logical:
        yield begun_at, logical


def _is_blank_or_comment(line: str) -> bool:
    return not line or line.startswith(("#", "!"))


def _continues(line: str) -> bool:
    """Whether the line ends with a backslash that no other backslash escapes."""
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] != "u":
            return _ESCAPES.get(escaped, escaped)
        return chr(int(escaped[1:], 16))  # a ValueError for a lone u

    replaced = _ESCAPE.sub(plain, text)
    # Java has UTF-16: two escapes are one character.
    return replaced.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
