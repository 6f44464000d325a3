"""One HTTP exchange with the server: bounded in time and size, never redirected, with the key in its header alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from dflash_pipeline.answering.settings import ServerSettings

LONGEST_CONNECT_SECONDS = 10.0
MOST_BYTES = 32 * 2**20
"""Of a reply: far more than the longest answer takes."""
_AT_ONCE = 2**16
_READ_ERRORS = (HTTPError, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """What came back, or why nothing did."""

    status: int | None
    """None when there was no whole reply; `fault` then says why."""
    body: bytes = b""
    retry_after_seconds: float | None = None
    fault: str = ""


class Connections:
    """Connections to one server, kept open, for many threads at once."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        # Neither proxies nor logins come from the environment: a login found there would take the key's place.
        self._pool = urllib3.PoolManager(maxsize=settings.concurrency, retries=False)
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if settings.key is not None:
            self._headers["Authorization"] = f"Bearer {settings.key}"

    def get(self, path: str) -> Exchange:
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Exchange:
        return self._exchange("POST", path, json.dumps(body).encode())

    def _exchange(self, method: str, path: str, body: bytes | None) -> Exchange:
        seconds = self._settings.patience.timeout_seconds
        ends = time.monotonic() + seconds
        try:
            response = self._pool.request(
                method,
                self._settings.url + path,
                body=body,
                headers=self._headers | ({"Content-Type": "application/json"} if body is not None else {}),
                timeout=urllib3.Timeout(connect=min(seconds, LONGEST_CONNECT_SECONDS), read=seconds),
                redirect=False,
                preload_content=False,
            )
        except _READ_ERRORS as error:
            return Exchange(status=None, fault=self._said(error))
        try:
            return self._read(response, ends)
        except _READ_ERRORS as error:
            return Exchange(status=None, fault=self._said(error))
        finally:
            # One that was read to its end has gone back to the others already.
            response.close()

    def _read(self, response: urllib3.BaseHTTPResponse, ends: float) -> Exchange:
        # Piece by piece, as they come: a server that trickles would keep a plain read waiting for ever.
        body = bytearray()
        while piece := response.read1(_AT_ONCE):
            body += piece
            if len(body) > MOST_BYTES:
                return Exchange(status=None, fault=f"a reply of more than {MOST_BYTES:,} bytes")
            if time.monotonic() > ends:
                return Exchange(status=None, fault=self._late)
        return Exchange(
            status=response.status,
            body=bytes(body),
            retry_after_seconds=_retry_after(response.headers.get("Retry-After")),
        )

    @property
    def _late(self) -> str:
        return f"no whole reply within {self._settings.patience.timeout_seconds:g} s"

    def _said(self, error: Exception) -> str:
        if isinstance(error, NewConnectionError):
            return "nobody answers at this address"
        if isinstance(error, ConnectTimeoutError | ReadTimeoutError | TimeoutError):
            return self._late
        lines = str(error).splitlines() or [""]
        return f"the connection broke: {self._settings.without_key(lines[0]) or type(error).__name__}"


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, of a number or a date; None for neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
