"""A server of the OpenAI protocol for tests: answers what a test gives it, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Answer with a status, headers and a body."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def says(content: object, status: int = 200) -> Reply:
    """Answer every request with ``content``: an object as JSON, a text as it is."""
    text = content if isinstance(content, str) else json.dumps(content)
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
    return lambda handler, _: send(handler, status, body)


class ModelServer:
    """``url``: base of the protocol. ``asked``: bodies of the requests; ``headers`` and ``paths`` of them."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()  # ends replies that wait
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(data)
                outer.headers.append(dict(self.headers))
                outer.paths.append(self.path)
                outer.reply(self, data)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextmanager
def model_server(reply: Reply) -> Iterator[ModelServer]:
    """Run a server while the block runs."""
    server = ModelServer(reply)
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.server.shutdown()
        server.server.server_close()
        thread.join()
