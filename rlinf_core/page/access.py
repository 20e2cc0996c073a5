"""Access to the operator's page: settings, token and checks of a browser's request."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from pydantic import Field

from rlinf_core.config.base import Settings
from rlinf_core.core.connections import is_loopback
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.page import TOKEN_LENGTH

if TYPE_CHECKING:
    from aiohttp.web import Request


class Web(Settings):
    """The operator's page (docs/howto/operator_page.md)."""

    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="TCP port of the operator's page. 0 serves none (rlinf up --web)",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address that the page binds. Any address beyond this machine needs a token",
    )
    token_file: str = Field(
        "",
        description="file with the page's token in its first line, "
        f"{TOKEN_LENGTH} characters or more. A browser shows it once",
    )


MAKE_ONE = (
    "Create one: (umask 077; openssl rand -hex 16 > page.token), and --set "
    "station.web.token_file=page.token"
)


def token_of(web: Web) -> str:
    """Return the token that a browser must send; empty if only this machine reaches the page.

    Raises:
        RecipeError: other machines could reach the page without a token, or the file holds none.
    """
    if not web.token_file:
        if web.port and not is_loopback(web.host):
            raise RecipeError(
                f"station.web.token_file: expected a file, since station.web.host is '{web.host}', "
                f"which other machines can reach, got none. {MAKE_ONE}. Or use "
                "station.web.host=127.0.0.1 with a tunnel (ssh -L)"
            )
        return ""
    try:
        token = (
            expand_user(web.token_file, "station.web.token_file")
            .read_text()
            .partition("\n")[0]
            .strip()
        )
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"station.web.token_file: expected a file with a token at '{web.token_file}', got: "
            f"{error}. {MAKE_ONE}"
        ) from error
    if len(token) < TOKEN_LENGTH or not token.isascii():
        raise RecipeError(
            f"station.web.token_file: expected a first line of {TOKEN_LENGTH} characters or more "
            f"in '{web.token_file}', got {len(token)}. {MAKE_ONE}"
        )
    return token


class Access:
    """Access to the page of one station.

    Args:
        station: name of the station. It is part of the cookie's name, because browsers share
            cookies between all ports of a host.
        token: token; empty if only this machine reaches the page.
    """

    def __init__(self, station: str, token: str) -> None:
        self.token = token
        self.cookie = f"rlinf_{station}"
        self.proof = hmac.new(token.encode(), self.cookie.encode(), hashlib.sha256).hexdigest()

    def is_valid_token(self, token: str) -> bool:
        """Return whether ``token`` is the right one."""
        return bool(self.token) and _is_same_token(self.token, token)

    def refusal_reason(self, request: Request) -> str:
        """Return why a browser's request is refused; empty if it is allowed.

        Other sites are refused as well, because any site can make a browser call this machine.
        """
        host, origin, site = (request.host, *map(request.headers.get, ("Origin", "Sec-Fetch-Site")))
        if (
            not self.token
            and not is_loopback(host.rpartition(":")[0] or host)
            and not is_loopback(host)
        ):
            return f"expected Host localhost or 127.0.0.1, got {host!r}"
        if origin is not None and origin.partition("://")[2] != host:
            return f"expected a page of this server, got one of {origin!r}"
        if origin is None and site not in (None, "none", "same-origin") and not _opens(request):
            return f"expected a page of this server, got a page of another server ({site!r})"
        if origin is None and request.path != "/" and request.headers.get("Upgrade"):
            return "expected the header Origin, got none"
        if self.token and not _is_same_token(self.proof, request.cookies.get(self.cookie, "")):
            return (
                "expected the token once: open this address with ?token=... (the file "
                "station.web.token_file)"
            )
        return ""


def _opens(request: Request) -> bool:
    """Return whether a person follows a link to the page.

    The other site can neither read nor frame the result.
    """
    headers = request.headers
    return request.path == "/" and (
        headers.get("Sec-Fetch-Mode"),
        headers.get("Sec-Fetch-Dest"),
    ) == ("navigate", "document")


def _is_same_token(expected: str, shown: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(expected.encode(), shown.encode(errors="replace"))
