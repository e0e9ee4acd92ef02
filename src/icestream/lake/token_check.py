"""Where the catalog asks for a bearer token, so does the whole API: a topic is not safer than its table."""

from __future__ import annotations

from fastapi import HTTPException, Request

from icestream.catalog.tokens import Tokens


def check_token(request: Request) -> None:
    tokens: Tokens = request.app.state.tokens
    if not tokens.allows(request.headers.get("authorization")):
        raise HTTPException(401, "a bearer token of lake.token_file is needed", {"WWW-Authenticate": "Bearer"})
