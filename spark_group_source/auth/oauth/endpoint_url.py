"""The URL of a token endpoint."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

_INVALID = "an https, http or file URL, for example https://login.example.com/oauth2/token"


def endpoint_url(text: str) -> str:
    """The URL of a token endpoint, or of a file with a token.

    Raises:
        ValueError: the text is no such URL; the message is the rest of a sentence that begins with "It must be".
    """
    url = text.strip()
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(_INVALID) from None
    if not url.isascii() or re.search(r"\s", url):
        raise ValueError(_INVALID)
    if parts.scheme == "file":
        _check_file(url, parts)
    elif parts.scheme in ("https", "http"):
        _check_server(parts)
    else:
        raise ValueError(_INVALID)
    return f"{parts.scheme}:{url.partition(':')[2]}"


def _check_file(url: str, parts: urllib.parse.SplitResult) -> None:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError("a file URL with an absolute path, for example file:///var/run/secrets/kafka/token")
    if "?" in url or "#" in url:
        raise ValueError("a file URL in which %3F stands for a question mark, and %23 for a hash sign")


def _check_server(parts: urllib.parse.SplitResult) -> None:
    if not parts.hostname:
        raise ValueError(_INVALID)
    if "@" in parts.netloc:  # a user and password, which logs would show
        raise ValueError(_INVALID)


def without_secrets(url: str) -> str:
    """The URL without its query, in which some services expect a key, and without a user and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_local(url: str) -> bool:
    """Whether the host of a URL is this machine."""
    host = urllib.parse.urlsplit(url).hostname
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_file(url: str | None) -> bool:
    """Whether the URL names a file with a token."""
    return url is not None and url.startswith("file:")
