"""The page over HTTP on this machine alone: starlette and uvicorn, bound to 127.0.0.1.

The link carries a random token. Requests without it, for another host or from another site are refused.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import anyio
import anyio.to_thread
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from regard import __version__
from regard.allocation import keep_freed_memory
from regard.errors import RegardError
from regard.files import hub
from regard.view.page import bundle, html, policy
from regard.view.session import NUMBERS, QUICK, Session

PORT = 8471
_MOST_BODY = 1 << 28  # a trace that is dropped on the page; `regard look FILE` opens larger ones
_SMALL_BODY = 1 << 21


def app(session: Session, token: str, port: int, start: dict[str, Any] | None = None) -> ASGIApp:
    """The server's application; `start` is what the page opens with."""
    quick = anyio.CapacityLimiter(2)  # tiles and numbers: short, and many at once would only wait for cores
    slow = anyio.CapacityLimiter(4)  # models: one that loads does not hold up another
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
    data = {"version": __version__, "token": token, "start": start or {}, "path": [], "docs": []}
    # What the browser is told that the page may do.
    headers = {
        "content-security-policy": f"{policy(bundle(), connects=True)}; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-store",
    }

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            refused = _refusal(request, token, hosts)
            if refused is not None:
                response: Response = PlainTextResponse(refused, 403)
            elif scope["path"] == "/":
                response = HTMLResponse(html(data, connects=True))
            else:
                response = await ask(request, scope["path"])
            response.headers.update(headers)
            await response(scope, receive, send)

    async def ask(request: Request, path: str) -> Response:
        name = path.removeprefix("/api/")
        if name == path or not session.knows(name):
            return PlainTextResponse(f"there is no question {name!r}.", 404)
        try:
            body = await _body(request, _MOST_BODY if name == "open" else _SMALL_BODY)
        except ClientDisconnect:
            return Response(status_code=499)
        if body is None:  # what is still being sent is not waited for
            return PlainTextResponse("this is too large to be read.", 413, {"connection": "close"})
        try:
            said = unquote(request.headers.get("x-regard-params", "")) or request.query_params.get("params")
            if said is None:
                said, body = body.decode("utf-8"), b""
            params = json.loads(said or "{}")
            if not isinstance(params, dict):
                raise TypeError("no mapping")
        except (ValueError, TypeError, RecursionError):
            return PlainTextResponse("the question is no JSON.", 400)
        async with quick if name in QUICK else slow:
            # Out of view while it waited: nobody wants the answer any more.
            if name in NUMBERS and await request.is_disconnected():
                return Response(status_code=499)
            try:
                written = await anyio.to_thread.run_sync(
                    session.answer, name, params, body, abandon_on_cancel=True
                )
            except RegardError as error:
                return PlainTextResponse(str(error), 400)
        kind = "application/octet-stream" if name in NUMBERS or name == "save" else "application/json"
        return Response(written, media_type=kind)

    return answer


def _refusal(request: Request, token: str, hosts: set[str]) -> str | None:
    """Why somebody who is not meant gets no answer."""
    if request.headers.get("host", "") not in hosts:
        return "This server answers to 127.0.0.1 only."
    origin = request.headers.get("origin")
    if origin is not None and origin.removeprefix("http://") not in hosts:
        return "This server answers to its own page only."
    shown = request.headers.get("x-regard-token") or request.query_params.get("token") or ""
    if not hmac.compare_digest(shown.encode(), token.encode()):
        return "The token is missing or wrong: open the link that `regard look` printed."
    return None


async def _body(request: Request, most: int) -> bytes | None:
    """What was sent; None where that is too much."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def make_token() -> str:
    """The token of this user's pages: random, made once and kept, so that a link opens again later."""
    path, token = hub.cache_folder() / "page-token", secrets.token_urlsafe(32)
    with contextlib.suppress(OSError):  # without a place to keep it the token serves this time
        if path.exists() and len(kept := path.read_text(encoding="ascii").strip()) >= 32:
            return kept
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token, encoding="ascii")
    return token


def listen(port: int = PORT) -> socket.socket:
    """A socket on 127.0.0.1 at `port`, or at a free one where that is taken."""
    # Named as TCP, asyncio sets TCP_NODELAY: an answer then does not wait 40 ms for its acknowledgement.
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError:
        found.bind(("127.0.0.1", 0))
    found.listen(128)  # from here on a browser waits for an answer and is not refused
    return found


def link(token: str, port: int, view: dict[str, Any] | None = None) -> str:
    """The address of the page, opened at a view."""
    shown = {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in (view or {}).items()
    }
    return f"http://127.0.0.1:{port}/?token={token}" + (f"#{urlencode(shown)}" if shown else "")


class _Server(uvicorn.Server):
    """Ends at once: a forward pass that still runs in a thread is not waited for."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        os._exit(0)


def serve(session: Session, token: str, bound: socket.socket, start: dict[str, Any] | None = None) -> None:
    """Answer until the process is ended with Ctrl-C."""
    keep_freed_memory()
    port = int(bound.getsockname()[1])
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "lifespan": "off"}
    _Server(uvicorn.Config(app(session, token, port, start), **quiet)).run(sockets=[bound])


def browser_possible() -> bool:
    """Whether a window can be opened for a person: a display, and not a remote shell without one."""
    if os.name == "nt" or Path("/System/Library/CoreServices").exists():
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
