"""A small OpenID Connect provider, as a process of its own: strict with who asks, and a liar on request.

``python -m tests.planner.console.provider`` prints its issuer and serves until it is stopped. Whoever signs in as
``liar-WHAT`` gets an ID token that is wrong in that way.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

CLIENT_ID, CLIENT_SECRET = "hope-console", "a secret & more"
ROLES: dict[str, list[str]] = {"ada": ["staff", "hope-admin"], "bob": ["hope-viewer"], "eve": ["guest"]}
KEY, OTHER_KEY = RSAKey.generate_key(2048, auto_kid=True), RSAKey.generate_key(2048, auto_kid=True)
PAGE = """<!doctype html><html lang="en"><title>Provider</title><form method="post">
<label>Name <input name="user" autofocus></label>{fields}<button>Sign in</button></form></html>"""


class Handler(BaseHTTPRequestHandler):
    """Discovery, a form to sign in, tokens and keys."""

    codes: dict[str, dict[str, str]] = {}

    @property
    def issuer(self) -> str:
        """What it calls itself."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def do_GET(self) -> None:
        """Answer what can be looked at."""
        url = urlsplit(self.path)
        match url.path:
            case "/.well-known/openid-configuration":
                self._send(
                    {
                        "issuer": self.issuer,
                        "authorization_endpoint": f"{self.issuer}/authorize",
                        "token_endpoint": f"{self.issuer}/token",
                        "jwks_uri": f"{self.issuer}/keys",
                    }
                )
            case "/keys":
                self._send(KeySet([KEY]).as_dict(private=False))
            case "/authorize":
                asked = {name: values[0] for name, values in parse_qs(url.query).items()}
                fields = (f'<input type="hidden" name="{n}" value="{html.escape(v)}">' for n, v in asked.items())
                self._send(PAGE.replace("{fields}", "".join(fields)))
            case _:
                self._send({"error": "not_found"}, 404)

    def do_POST(self) -> None:
        """Take the form, or exchange a code."""
        raw = self.rfile.read(int(self.headers["content-length"])).decode()
        sent = {name: values[0] for name, values in parse_qs(raw).items()}
        if self.path.startswith("/authorize"):
            self._authorize(sent)
        else:
            self._token(sent)

    def _authorize(self, sent: dict[str, str]) -> None:
        assert (sent["response_type"], sent["client_id"]) == ("code", CLIENT_ID)
        assert sent["code_challenge_method"] == "S256"
        assert "openid" in sent["scope"].split()
        if sent["user"] == "nobody":
            answer = {"error": "access_denied", "state": sent["state"]}
        else:
            code = secrets.token_urlsafe(16)
            self.codes[code] = sent
            answer = {"code": code, "state": sent["state"], "iss": self.issuer, "session_state": "ignored"}
        self.send_response(302)
        self.send_header("Location", f"{sent['redirect_uri']}?{urlencode(answer)}")
        self.end_headers()

    def _token(self, sent: dict[str, str]) -> None:
        asked = self.codes.pop(sent["code"], None)
        proved = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if (
            asked is None
            or (sent["client_id"], sent["client_secret"]) != (CLIENT_ID, CLIENT_SECRET)
            or (sent["grant_type"], sent["redirect_uri"]) != ("authorization_code", asked["redirect_uri"])
            or proved != asked["code_challenge"]
        ):
            return self._send({"error": "invalid_grant"}, 400)
        user, _, lie = asked["user"].partition("-")
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": f"id-of-{user}", "nonce": asked["nonce"], "iat": now,
            "exp": now + 300, "email": f"{user}@example.com", "realm": {"roles": ROLES.get(user, ["hope-admin"])},
        }  # fmt: skip
        claims |= {
            "nonce": {"nonce": "another"},
            "issuer": {"iss": "https://evil.example"},
            "audience": {"aud": ["somebody", "else"]},
            "party": {"aud": [CLIENT_ID, "other"], "azp": "other"},
            "expired": {"exp": now - 3600, "iat": now - 7200},
            "early": {"iat": now + 3600},
            "name": {"email": "a\u202e" * 100},
        }.get(lie, {})
        if lie == "huge":
            return self._send("x" * 2_000_000)
        if lie == "deep":
            return self._send("[" * 100_000)
        id_token: Any = jwt.encode({"alg": "RS256", "kid": KEY.kid}, claims, OTHER_KEY if lie == "key" else KEY)
        if lie == "symmetric":
            public = OctKey.import_key(KEY.as_pem(private=False))
            id_token = jwt.encode({"alg": "HS256"}, claims, public)
        elif lie == "unsigned":
            head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
            id_token = f"{head}.{id_token.split('.')[1]}."
        elif lie == "nothing":
            id_token = None
        self._send({"access_token": "unused", "token_type": "Bearer", "id_token": id_token})

    def _send(self, answer: Any, status: int = 200) -> None:
        body = answer if isinstance(answer, str) else json.dumps(answer)
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
