"""The code of ``docs/authentication.md`` runs as it stands there, token functions against stubs of their services."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from spark_group_source.auth.sasl_options import MECHANISMS
from spark_group_source.options.parsing import parse_options
from tests.unit.new_process import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "authentication.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
MODULES = {name: block for block in BLOCKS for name in re.findall(r"\A# (\w+)\.py", block)}
SIGN_INS = [block for block in BLOCKS if "sign_in = {" in block]
QUERY = {
    "kafka.bootstrap.servers": "b-1.example.abc123.c2.kafka.eu-central-1.amazonaws.com:9098",
    "kafka.group.id": "orders-to-lake",
    "subscribe": "orders",
}


def test_the_first_table_has_each_sign_in() -> None:
    table = PAGE.partition("\n## ")[0]
    sign_ins = (*MECHANISMS, "certificates")
    assert [each for each in sign_ins if f"`{each}`" not in table and f"[{each}]" not in table] == []


class TokenService(ThreadingHTTPServer):
    """Gives out the JSON of ``answers`` by path. ``requests`` has the path and the parameters of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        self.address = f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: TokenService

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        self.server.requests.append((url.path, parse_qs(url.query) | parse_qs(body)))
        answer = self.server.answers.get(url.path)
        self.send_response(404 if answer is None else 200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"" if answer is None else json.dumps(answer).encode())

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[TokenService]:
    with TokenService() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def tokens(modules: Path, name: str, environment: dict[str, str], times: int = 1) -> list[Any]:
    """What ``token()`` of a module returns when it is called ``times`` in a process of its own."""
    program = f"import json, {name}; print(json.dumps([{name}.token() for _ in range({times})]))"
    cloud = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "IDENTITY_", "MSI_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(cloud)}
    own = {"PYTHONPATH": str(modules), "HOME": str(modules), "NO_PROXY": "*"}
    return list(json.loads(run_python(program, env=inherited | own | environment).stdout))


def decoded(part: str) -> str:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()


def test_the_entra_recipe_gets_one_token_from_the_managed_identity(modules: Path, service: TokenService) -> None:
    path = "/metadata/identity/oauth2/token"
    lifetime = {"expires_in": "3600", "expires_on": str(int(time.time()) + 3600)}
    service.answers[path] = {"access_token": "entr4", "token_type": "Bearer", "resource": "api://app", **lifetime}
    address = f"http://{service.address}"
    environment = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": address, "KAFKA_TOKEN_SCOPE": "api://app/.default"}
    assert tokens(modules, "entra_tokens", environment, times=3) == ["entr4"] * 3
    assert {request[0] for request in service.requests} == {path}
    assert service.requests[-1][1]["resource"] == ["api://app"]
    assert len(service.requests) <= 2  # the first may be a probe for the service


def test_the_google_recipe_puts_the_access_token_into_googles_form(modules: Path, service: TokenService) -> None:
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    email = "orders@project.iam.gserviceaccount.com"
    service.answers["/"] = {}
    service.answers["/computeMetadata/v1/project/project-id"] = "project"
    service.answers[account] = {"email": email, "scopes": [], "aliases": []}
    named = account.replace("default", email) + "token"
    token = {"access_token": "ya29.t0ken", "expires_in": 3600, "token_type": "Bearer"}
    service.answers |= {f"{account}token": token, named: token}
    environment = {"GCE_METADATA_HOST": service.address, "GCE_METADATA_IP": service.address}
    first, second = tokens(modules, "google_tokens", environment, times=2)
    header, claims, access_token = map(decoded, first.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert json.loads(claims).keys() == {"iss", "sub", "scope", "iat", "exp"}
    assert (json.loads(claims)["iss"], json.loads(claims)["sub"]) == ("Google", email)
    assert json.loads(claims)["iat"] == pytest.approx(time.time(), abs=60)
    assert json.loads(claims)["exp"] == pytest.approx(time.time() + 3600, abs=60)
    assert access_token == "ya29.t0ken"
    assert second.split(".")[2] == first.split(".")[2]
    assert len([path for path, _ in service.requests if path.endswith("/token")]) == 1


@pytest.mark.parametrize("code", SIGN_INS)
def test_options_of_a_sign_in_fit(code: str, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(modules))
    for name in re.findall(r"""os\.environ\[["'](\w+)["']\]""", "".join(BLOCKS)):
        monkeypatch.setenv(name, "x")
    # The credentials of Google's module come from its service, which the test above has.
    monkeypatch.setattr("google.auth.default", lambda **_: (None, None))
    names: dict[str, Any] = {}
    exec(code, names)
    ca = trustme.CA()
    for name in ("ca.pem", "client.pem"):
        ca.issue_cert("orders-to-lake").private_key_and_cert_chain_pem.write_to_path(tmp_path / name)
    parse_options(QUERY | {key: value.replace("/etc/kafka", str(tmp_path)) for key, value in names["sign_in"].items()})
