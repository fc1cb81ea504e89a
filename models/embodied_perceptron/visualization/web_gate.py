"""The door before the viewer's web server: who may come in, and how many.

The server behind it listens on a socket file that only this user can open, so that there is no way around the door. It
looks at the head of every connection: the page must be asked for by the name of a place that it is served from, scripts
of other pages are refused (they may open sockets to any address), and where a token is needed it must be in the address
(``/?token=...``; a cookie then keeps it) or in the cookie. What passes is handed on byte by byte.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

MAX_VIEWERS = 32  # browser tabs at a time; each gets its own copy of everything that changes
_PER_VIEWER = 8  # connections of any kind: a browser opens up to six beside a page's socket, and keeps them
_MAX_HEAD = 16_384
_HEAD_S = 10.0  # for a client to say what it wants
_CHUNK = 65_536
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class PortTakenError(OSError):
    """The viewer's port is in use, or its address is none of this machine."""


@dataclass(frozen=True)
class Head:
    """The first lines of an HTTP request; ``headers`` by lower-case name."""

    target: str
    headers: dict[str, str]
    method: str = "GET"

    @property
    def is_socket(self) -> bool:
        """Whether it asks for a WebSocket: a page that stays."""
        return self.headers.get("upgrade", "").lower() == "websocket"


@dataclass(frozen=True)
class Refusal:
    """An answer of the door itself."""

    status: str
    text: str
    headers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The HTTP response."""
        body = (self.text + "\n").encode()
        lines = [f"HTTP/1.1 {self.status}", "Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, *self.headers, "Connection: close", "", ""]).encode() + body


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_head(data: bytes) -> Head:
    """Parse a request's head. Raises ``ValueError`` for what is none."""
    lines = data.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise ValueError(f"no HTTP request: {lines[0][:80]!r}")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return Head(parts[1], headers, parts[0])


def examine(head: Head, token: str, cookie_name: str, local_only: bool) -> Refusal | None:
    """Whether a request may pass (None), or what it is answered instead."""
    if head.method != "GET":
        return Refusal("405 Method Not Allowed", f"only GET is answered, not {head.method[:20]}", ("Allow: GET",))
    host, origin = head.headers.get("host", ""), head.headers.get("origin", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        place = urlsplit(origin).netloc
        target = urlsplit(head.target)
    except ValueError as error:  # brackets that do not close
        return Refusal("400 Bad Request", f"Host, Origin or address cannot be read: {error}")
    if local_only and name not in _LOOPBACK_NAMES:  # a name that somebody else resolves to this machine
        return Refusal("403 Forbidden", f"this viewer is served as localhost, not as {name[:80]!r}")
    if origin and place != host:
        return Refusal("403 Forbidden", "pages of other places may not look through this viewer")
    if not token:
        return None
    given = parse_qs(target.query, keep_blank_values=True)
    if "token" in given:
        if not hmac.compare_digest(given.pop("token")[-1].encode(), token.encode()):
            return Refusal("401 Unauthorized", "the token is wrong: open the address that the log shows")
        rest = urlencode(given, doseq=True)
        there = "/" + target.path.lstrip("/") + (f"?{rest}" if rest else "")
        keep = f"Set-Cookie: {cookie_name}={token}; Path=/; HttpOnly; SameSite=Strict"
        return Refusal("303 See Other", "come in", (f"Location: {there}", keep))
    try:
        cookies = SimpleCookie(head.headers.get("cookie", ""))
    except CookieError:
        cookies = SimpleCookie()
    kept = cookies[cookie_name].value if cookie_name in cookies else ""
    if not hmac.compare_digest(kept.encode(), token.encode()):
        return Refusal("401 Unauthorized", "a token is needed: open the address that the log shows")
    return None


class WebGate:
    """Listens, in a thread of its own, and hands connections on to the socket file of the server behind.

    Args:
        host: to listen on.
        port: to listen on; 0 = any free one.
        inner: socket file of the server behind.
        token: that a client must show; empty = none is needed.
        max_viewers: sockets at a time; further ones are answered 503. Of all connections together, also those that say
            nothing, :data:`_PER_VIEWER` times as many are let in and no more: each takes files of the process.

    Raises :class:`PortTakenError` when it cannot listen there.
    """

    def __init__(self, host: str, port: int, inner: str, token: str = "", max_viewers: int = MAX_VIEWERS) -> None:
        self._inner = inner
        self._token = token
        self._max_viewers = max_viewers
        self._local_only = is_loopback(host)
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.cookie_name = f"embodied_perceptron_{self.port}"
        self.refused = 0
        self._viewers = self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="web gate", daemon=True)
        self._thread.start()

    @property
    def viewers(self) -> int:
        """Pages that are open."""
        return self._viewers

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)

    # ---- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._socket, limit=_MAX_HEAD))
        try:
            self._loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= _PER_VIEWER * self._max_viewers:
            self.refused += 1
            writer.close()
            return
        self._connections += 1
        try:
            await self._admit(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass  # went away, said nothing, or too much
        except asyncio.CancelledError:
            pass  # the door is closed for good: nobody waits for this task
        finally:
            self._connections -= 1
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
        try:
            head = read_head(data)
        except ValueError as error:
            await self._refuse(writer, Refusal("400 Bad Request", str(error)))
            return
        refusal = examine(head, self._token, self.cookie_name, self._local_only)
        if refusal is None and head.is_socket and self._viewers >= self._max_viewers:
            refusal = Refusal("503 Service Unavailable", f"{self._max_viewers} pages are open already")
        if refusal is not None:
            await self._refuse(writer, refusal)
            return
        self._viewers += head.is_socket
        try:
            await self._hand_on(data, reader, writer)
        finally:
            self._viewers -= head.is_socket

    async def _refuse(self, writer: asyncio.StreamWriter, refusal: Refusal) -> None:
        self.refused += not refusal.status.startswith("303")
        writer.write(refusal.encode())
        await writer.drain()

    async def _hand_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._inner)
        inner_writer.write(head)
        try:
            await _first_of(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


async def _first_of(*ways: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
