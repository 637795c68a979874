"""Signing in through an OpenID Connect provider: the authorization code flow with PKCE.

OpenID Connect Core 1.0, section 3.1, and RFC 7636. The browser keeps one secret per attempt, from which everything that
binds the provider's answer to it follows, so that no replica has to remember who is on the way.
"""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from planner_api.settings import Settings, is_private
from planner_api.web.principal import Principal

TIMEOUT_S = 10.0
MAX_BYTES = 512 * 1024
"""Largest answer of a provider that is read."""
LEEWAY_S = 60
"""By how much the provider's clock may differ."""
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384")
"""Signatures that are accepted: none of them could be made with what we know."""
MAX_NAME = 150
ANYBODY = "*"


class SignInError(Exception):
    """Nobody was signed in; ``detail`` says why, and what to do. ``code`` is 502 where it is the provider's fault."""

    def __init__(self, detail: str, code: Literal[401, 502] = 401) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code


def derived(attempt: str, what: Literal["state", "nonce", "verifier"]) -> str:
    """What binds the provider's answer to this browser (the state: RFC 6749, section 10.12), its ID token to this
    attempt (the nonce), and its code to who asked for it (the verifier: RFC 7636, section 4.1).

    ``attempt`` is a secret that never leaves the browser's cookie.
    """
    return _base64url(hmac.new(attempt.encode(), what.encode(), hashlib.sha256).digest())


class Provider:
    """The OpenID Connect provider that the settings name."""

    def __init__(self, settings: Settings) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id

    async def address(self, attempt: str, callback: str) -> str:
        """Return where a browser goes to sign in. Raises SignInError when the provider is away."""
        async with _client() as client:
            endpoint = _endpoint(await self._said(client), "authorization_endpoint")
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": callback,
            "scope": self._settings.oidc_scopes,
            "state": derived(attempt, "state"),
            "nonce": derived(attempt, "nonce"),
            "code_challenge": _base64url(hashlib.sha256(derived(attempt, "verifier").encode()).digest()),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def person(self, attempt: str, callback: str, answer: Mapping[str, str]) -> Principal:
        """Return whom the provider's answer vouches for.

        Raises:
            SignInError: it vouches for nobody, not for this attempt, or for somebody who may not come in.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), derived(attempt, "state").encode()):
            raise SignInError("This answer belongs to another attempt to sign in; begin again.")
        if answer.get("iss", self._issuer) != self._issuer:
            raise SignInError("This answer comes from another provider; begin again.")
        if "code" not in answer:
            raise SignInError(f"The provider signed nobody in: {answer.get('error', 'it does not say why')}.")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": callback,
            "client_id": self._client_id,
            "code_verifier": derived(attempt, "verifier"),
        }
        secret = self._settings.oidc_client_secret
        if secret is not None:
            form["client_secret"] = secret.get_secret_value()
        async with _client() as client:
            said = await self._said(client)
            tokens = await _fetch(client, "POST", _endpoint(said, "token_endpoint"), data=form)
            keys = await _fetch(client, "GET", _endpoint(said, "jwks_uri"))
        return self._person(self._verified(tokens.get("id_token"), keys, derived(attempt, "nonce")))

    async def _said(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """What the provider says of itself (OpenID Connect Discovery 1.0, section 4)."""
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        said = await _fetch(client, "GET", address)
        if said.get("issuer") != self._issuer:
            raise SignInError(f"The provider calls itself {said.get('issuer')!r}, not {self._issuer}.", 502)
        return said

    def _verified(self, id_token: Any, keys: Any, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that is the provider's, for us, of now and of this attempt (section 3.1.3.7)."""
        try:
            if not isinstance(id_token, str):
                raise ValueError("there is none")
            key_set = KeySet.import_key_set(keys)
            claims = jwt.decode(id_token, key_set, algorithms=ALGORITHMS).claims
            jwt.JWTClaimsRegistry(
                leeway=LEEWAY_S,
                iss={"essential": True, "value": self._issuer},
                aud={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(claims)
            audience = [claims["aud"]] if isinstance(claims["aud"], str) else claims["aud"]
            if self._client_id not in audience or claims.get("azp", self._client_id) != self._client_id:
                raise ValueError("it is for somebody else")
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise SignInError(f"The provider's ID token cannot be trusted: {error}.", 502) from None
        return claims

    def _person(self, claims: dict[str, Any]) -> Principal:
        settings = self._settings
        name, roles = claims.get(settings.oidc_name_claim), _values(claims, settings.oidc_role_claim)
        if not isinstance(name, str) or not (name.isprintable() and 0 < len(name.strip()) <= MAX_NAME):
            raise SignInError(
                f"The claim '{settings.oidc_name_claim}' is no name of at most {MAX_NAME} printable characters; "
                "HOPE_OIDC_NAME_CLAIM chooses another one."
            )
        wanted: dict[Literal["admin", "viewer"], str] = {"admin": settings.oidc_admins, "viewer": settings.oidc_viewers}
        for role, listed in wanted.items():
            values = {value.strip() for value in listed.split(",")} - {""}
            if roles & values or ANYBODY in values:
                return Principal(role, f"oidc:{name.strip()}")
        raise SignInError(
            f"The provider knows you, but nothing in the claim '{settings.oidc_role_claim}' opens this console; "
            "ask who runs it."
        )


def _endpoint(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name)
    if not isinstance(found, str) or not is_private(found):
        raise SignInError(f"The provider names no safe {name}.", 502)
    return found


def _values(claims: dict[str, Any], path: str) -> set[str]:
    """What a claim says: a word, or several. ``path`` is its name, or leads to it: ``realm_access.roles``."""
    found: Any = claims
    for name in [path] if path in claims else path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, str):
        return set(found.split())
    return {value for value in found if isinstance(value, str)} if isinstance(found, list) else set()


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT_S, headers={"accept": "application/json"})


async def _fetch(client: httpx.AsyncClient, method: str, address: str, **more: Any) -> dict[str, Any]:
    """A JSON object of the provider. Raises SignInError for anything else, for too much of it and for too late."""
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_S), client.stream(method, address, **more) as answer:
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise SignInError("The provider answers with more than anybody would read.", 502)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        raise SignInError("The provider does not answer; sign in with a token, or try again.", 502) from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SignInError("The provider answers with something that is no JSON object.", 502)
    if answer.status_code >= 400:
        raise SignInError(f"The provider refuses: {str(found.get('error', answer.status_code))[:100]}.")
    return found


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
