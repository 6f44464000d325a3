"""A server with OpenAI's interface on the loopback, that answers by a script and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "the-target"


@dataclass(frozen=True, kw_only=True)
class Say:
    """One reply, after `seconds`. `cut`: the connection breaks in the middle of the body. `raw`: in place of JSON."""

    text: str = "fine"
    ended: str | None = "stop"
    status: int = 200
    seconds: float = 0.0
    cut: bool = False
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    message: dict[str, Any] | None = None
    trickle: float | None = None
    """Seconds between single bytes of the body."""
    prompt_tokens: int | None = None
    answer_tokens: int | None = None


Script = Callable[[str, int], Say]
"""From a prompt's text and how often it was asked for (from 1)."""


class Served:
    """What a server saw."""

    def __init__(self, script: Script, read: Callable[[Any], str]) -> None:
        self.script, self.read = script, read
        self.url = ""
        self.models: Say = Say(raw=json.dumps({"data": [{"id": MODEL}]}).encode())
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: Counter[str] = Counter()
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    @property
    def asked(self) -> list[str]:
        return [self.read(body) for body in self.bodies]

    def answer(self, body: dict[str, Any]) -> Say:
        prompt = self.read(body)
        with self._lock:
            self.bodies.append(body)
            self.times[prompt] += 1
            return self.script(prompt, self.times[prompt])

    @contextmanager
    def under_way(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: Served

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.seen.paths.append(self.path)
        self._send(self.seen.models, self.seen.models.raw or b"")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.seen.paths.append(self.path)
        self.seen.headers.append(dict(self.headers))
        with self.seen.under_way():
            say = self.seen.answer(body)
            time.sleep(say.seconds)
            self._send(
                say, say.raw if say.raw is not None else _document(say, chat=self.path.endswith("chat/completions"))
            )

    def _send(self, say: Say, body: bytes) -> None:
        try:
            self.send_response(say.status)
            for name, value in {"Content-Length": str(len(body)), **say.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if say.trickle is not None:
                for byte in body:
                    time.sleep(say.trickle)
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
            self.wfile.write(body[: len(body) // 2] if say.cut else body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # Whoever asked waits no more.
        if say.cut:
            self.close_connection = True


def _document(say: Say, *, chat: bool) -> bytes:
    said: dict[str, Any] = {"message": say.message or {"content": say.text}} if chat else {"text": say.text}
    counts = {"prompt_tokens": say.prompt_tokens, "completion_tokens": say.answer_tokens}
    told = {name: number for name, number in counts.items() if number is not None}
    usage = {"usage": told} if told else {}
    return json.dumps({"choices": [{"index": 0, "finish_reason": say.ended, **said}], **usage}).encode()


@contextmanager
def serving(
    script: Script, read: Callable[[Any], str] = lambda body: str(body.get("prompt", body.get("messages")))
) -> Iterator[Served]:
    """`read` finds a prompt's text in the body of a request."""
    served = Served(script, read)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"seen": served}))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
