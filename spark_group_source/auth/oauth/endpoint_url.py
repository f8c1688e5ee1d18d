"""The URL of a token endpoint."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse


def endpoint_url(text: str) -> str:
    """The URL of a token endpoint, or of a file with a token."""
    url = text.strip()
    problem = ValueError("an https, http or file URL, for example https://login.example.com/oauth2/token")
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        raise problem from None
    scheme = parts.scheme
    if not url.isascii() or re.search(r"\s", url) or scheme not in ("https", "http", "file"):
        raise problem
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError("a file URL with an absolute path, for example file:///var/run/secrets/kafka/token")
        if "?" in url or "#" in url:
            raise ValueError("a file URL in which %3F stands for a question mark, and %23 for a hash sign")
    elif not parts.hostname or "@" in parts.netloc:
        raise problem
    return f"{scheme}:{url.partition(':')[2]}"


def without_secrets(url: str) -> str:
    """The URL without its query, in which some services expect a key, and without a user and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_local(url: str) -> bool:
    """Whether the host of a URL is this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_file(url: str | None) -> bool:
    """Whether the URL names a file with a token."""
    return url is not None and url.startswith("file:")
