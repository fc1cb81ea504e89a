"""Admission to the viewer's web server: who may connect, and how many.

viser has no hook for it. It serves through ``websockets``, whose ``serve`` is replaced while viser starts
(:meth:`WebGate.guard`): the server then listens on this gate's port and checks every request. The Host header must be
a name that the page is served as, scripts of other pages are refused (they may open sockets to any address), and where
a token is needed it must be in the address (``/?token=...``; a cookie then keeps it) or in the cookie.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

if TYPE_CHECKING:
    from websockets.http11 import Request, Response

MAX_VIEWERS = 32  # browser tabs at a time; each gets its own copy of everything that changes
_PER_VIEWER = 8  # connections of any kind: a browser opens up to six beside a page's socket, and keeps them
_MAX_HEAD = 16_384  # bytes of a request
_REQUEST_S = 10.0  # for a client to send its request
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class PortTakenError(OSError):
    """The viewer's port is in use, or its address does not belong to this machine."""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def examine(request: Request, token: str, cookie_name: str, local_only: bool) -> Response | None:
    """Return None for a request that may pass, otherwise the response that refuses it or stores its token."""
    host, origin, sent_cookies = (", ".join(request.headers.get_all(k)) for k in ("Host", "Origin", "Cookie"))
    try:
        name = urlsplit(f"//{host}").hostname or ""
        place = urlsplit(origin).netloc
        target = urlsplit(request.path)
    except ValueError as error:  # brackets that do not close
        return _response(400, "Bad Request", f"Host, Origin or address cannot be read: {error}")
    if local_only and name not in _LOOPBACK_NAMES:  # a foreign name that resolves to this machine
        return _response(403, "Forbidden", f"this viewer is served as localhost, not as {name[:80]!r}")
    if origin and place != host:
        return _response(403, "Forbidden", "pages of other sites may not use this viewer")
    if not token:
        return None
    given = parse_qs(target.query, keep_blank_values=True)
    if "token" in given:
        if not hmac.compare_digest(given.pop("token")[-1].encode(), token.encode()):
            return _response(401, "Unauthorized", "the token is wrong: open the address that the log shows")
        rest = urlencode(given, doseq=True)
        location = "/" + target.path.lstrip("/") + (f"?{rest}" if rest else "")
        cookie = f"{cookie_name}={token}; Path=/; HttpOnly; SameSite=Strict"
        return _response(303, "See Other", "the token is stored", {"Location": location, "Set-Cookie": cookie})
    try:
        cookies = SimpleCookie(sent_cookies)
    except CookieError:
        cookies = SimpleCookie()
    kept = cookies[cookie_name].value if cookie_name in cookies else ""
    if not hmac.compare_digest(kept.encode(), token.encode()):
        return _response(401, "Unauthorized", "a token is needed: open the address that the log shows")
    return None


def _response(status: int, reason: str, text: str, headers: dict[str, str] | None = None) -> Response:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    body = (text + "\n").encode()
    sizes = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"}
    return Response(status, reason, Headers(sizes | (headers or {})), body)


class WebGate:
    """A listening socket, and the checks of everything that connects to it.

    Args:
        host: address to listen on.
        port: port to listen on; 0 = any free one.
        token: that a client must show; empty = none is needed.
        max_viewers: WebSockets at a time; further ones are answered 503. At most :data:`_PER_VIEWER` times as many
            connections are kept, as each takes a file of the process: a further one replaces the oldest that has sent
            no request yet, so that silent ones keep nobody out.

    Raises:
        PortTakenError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, token: str = "", max_viewers: int = MAX_VIEWERS) -> None:
        self._token = token
        self._max_viewers = max_viewers
        self._local_only = is_loopback(host)
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.cookie_name = f"embodied_perceptron_{self.port}"
        self.refused = 0
        self.connections: dict[Any, None] = {}  # oldest first
        self._viewers: set[object] = set()

    def close(self) -> None:
        """Stop listening, where no server has the socket."""
        self._socket.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Make servers that ``websockets`` starts within the block use this gate and its port."""
        from websockets.asyncio import server

        gate, serve = self, server.serve

        class Connection(server.ServerConnection):
            _head_bytes = 0

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                gate.connections[self] = None
                if len(gate.connections) > _PER_VIEWER * gate._max_viewers:
                    silent = next((c for c in gate.connections if c.request is None), self)
                    del gate.connections[silent]
                    gate.refused += 1
                    silent.transport.close()

            def data_received(self, data: bytes) -> None:
                if self.request is None:
                    self._head_bytes += len(data)
                    if self._head_bytes > _MAX_HEAD:
                        self.transport.abort()
                        return
                super().data_received(data)

            def connection_lost(self, exc: Exception | None) -> None:
                gate.connections.pop(self, None)
                gate._viewers.discard(self)
                super().connection_lost(exc)

        def guarded(handler: Any, host: str, port: int, *, process_request: Any = None, **options: Any) -> Any:
            def admit(connection: Any, request: Request) -> Any:
                refusal = gate._examine(connection, request)
                return refusal or (process_request and process_request(connection, request))

            return serve(
                handler,
                sock=gate._socket,
                process_request=admit,
                create_connection=Connection,
                open_timeout=_REQUEST_S,
                **options,
            )

        server.serve = guarded  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            server.serve = serve  # type: ignore[misc]

    def _examine(self, connection: object, request: Request) -> Response | None:
        refusal = examine(request, self._token, self.cookie_name, self._local_only)
        if refusal is None and request.headers.get("Upgrade", "").lower() == "websocket":
            if len(self._viewers) < self._max_viewers:
                self._viewers.add(connection)
            else:
                refusal = _response(503, "Service Unavailable", f"{self._max_viewers} pages are open already")
        self.refused += refusal is not None and refusal.status_code != 303
        return refusal


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise PortTakenError(f"the web viewer cannot listen on {host}, port {port}: {error}") from error
    return listening
