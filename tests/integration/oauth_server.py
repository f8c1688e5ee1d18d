"""An OAuth 2 server of Authlib in this process: client credentials, JWTs with RS256 signatures, a JWKS endpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, Response, jsonify, request
from joserfc.jwk import RSAKey
from werkzeug.serving import BaseWSGIServer, make_server

from spark_group_source.testing.ports import free_ports

ISSUER = "https://login.example.com"
AUDIENCE = "kafka"
CLIENT, CLIENT_SECRET = "orders-to-lake", "cl1ent/s3cret+="
SCOPES = ("kafka:read", "kafka:write")


class _Client(ClientMixin):  # type: ignore[misc]
    def get_client_id(self) -> str:
        return CLIENT

    def check_client_secret(self, secret: str) -> bool:
        return secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, _: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join(each for each in (scope or SCOPES[0]).split() if each in SCOPES)


class OAuthServer:
    """Serves ``/token`` and ``/jwks`` with http, and with https if a certificate is given; :meth:`stop` is an outage.

    ``lifetime`` in seconds, ``audience`` and ``key`` are of the tokens to come. ``tokens`` counts those issued.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.lifetime = 300
        self.audience = AUDIENCE
        self.key = self._published = RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True)
        self.tokens = 0
        self._certificate = certificate
        self._ports = free_ports(2)
        self._servers: list[tuple[BaseWSGIServer, threading.Thread]] = []
        self._app = self._new_app()

    @property
    def jwks_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}/jwks"

    @property
    def token_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}/token"

    @property
    def https_token_url(self) -> str:
        return f"https://127.0.0.1:{self._ports[1]}/token"

    def start(self) -> None:
        """Starts the server, or ends the outage."""
        tls = None if self._certificate is None else (str(self._certificate), str(self._certificate))
        for port, context in zip(self._ports, (None, tls), strict=True):
            server = make_server("127.0.0.1", port, self._app, threaded=True, ssl_context=context)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            self._servers.append((server, thread))

    def stop(self) -> None:
        """Refuses connections until :meth:`start`."""
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()
        self._servers.clear()

    def use_unpublished_key(self) -> None:
        """Signs the tokens to come with a key that no broker knows."""
        kid = self._published.kid
        assert kid is not None
        self.key = RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})

    def use_published_key(self) -> None:
        """Signs with the key of the JWKS again."""
        self.key = self._published

    def _new_app(self) -> Flask:
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
        app = Flask("oauth-server")
        app.config["OAUTH2_SCOPES_SUPPORTED"] = list(SCOPES)
        server = AuthorizationServer(
            app,
            query_client=lambda client_id: _Client() if client_id == CLIENT else None,
            save_token=lambda _token, _request: self._count(),
        )
        server.register_grant(_Grant)
        server.register_token_generator("default", _Tokens(self))

        def token() -> Any:
            return server.create_token_response(request)

        def jwks() -> Response:
            return jsonify({"keys": [self._published.as_dict(private=False)]})

        app.add_url_rule("/token", view_func=token, methods=["POST"])
        app.add_url_rule("/jwks", view_func=jwks)
        return app

    def _count(self) -> None:
        self.tokens += 1


class _Grant(ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS: Iterable[str] = ["client_secret_basic"]


class _Tokens(JWTBearerTokenGenerator):  # type: ignore[misc]
    def __init__(self, server: OAuthServer) -> None:
        super().__init__(ISSUER, expires_generator=lambda *_: server.lifetime)
        self._server = server

    def get_jwks(self) -> Any:
        return self._server.key

    def get_audiences(self, *_: Any) -> str:
        return self._server.audience
