"""Answers that are sent only if they have changed since the last one, and errors of requests in one line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute


class ConditionalRoute(APIRoute):
    """A route whose JSON answers have an ``ETag``. An unchanged answer to a GET is a 304 without a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handle_conditionally(request: Request) -> Response:
            response = await handle(request)
            is_json = response.headers.get("content-type") == "application/json"
            if request.method != "GET" or response.status_code != 200 or not is_json:
                return response
            tag = f'"{hashlib.sha256(response.body).hexdigest()[:24]}"'
            # A proxy that compresses answers makes the tag a weak one.
            known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
            if tag in known:
                response = Response(status_code=304)
            response.headers["ETag"] = tag
            return response

        return handle_conditionally


def describe_invalid_request(error: RequestValidationError) -> str:
    """Return what is wrong with a request, in one line."""
    faults = (f"{'.'.join(map(str, one['loc'][1:])) or 'request'}: {one['msg']}" for one in error.errors())
    return "; ".join(faults)
