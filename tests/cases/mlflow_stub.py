"""The part of MLflow's REST interface that the tracker uses, in memory, and a server that can be told to fail."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlparse

UP, REFUSES, SILENT, BROKEN = "up", "refuses connections", "accepts, never answers", "answers 500"
SLOW, DEAF = "takes seconds a call", "does it, never answers"
BEHAVIOURS = (UP, REFUSES, SILENT, BROKEN, SLOW, DEAF)
RUN_ID = "0" * 32


class FailingServer:
    """One experiment and one run. `behave` changes at once how it answers; what it has stored stays."""

    def __init__(self, artifacts: Path) -> None:
        self.artifacts = artifacts
        self.metrics: list[dict[str, Any]] = []
        self.rows: set[tuple[Any, ...]] = set()
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.status = "RUNNING"
        self.slow_seconds = 2.0
        self.num_created = 0
        self.num_batches = 0
        self.authorizations: set[str] = set()
        self.behaviour = UP
        self.closed = threading.Event()
        self.lock = threading.Lock()
        self._http: ThreadingHTTPServer | None = self._listen(0)
        self.port = self._http.server_port

    def __enter__(self) -> FailingServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        self.behave(REFUSES)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def points(self, key: str) -> list[tuple[int, float]]:
        with self.lock:
            return [(int(m["step"]), float(m["value"])) for m in self.metrics if m["key"] == key]

    def behave(self, behaviour: str) -> None:
        if behaviour not in BEHAVIOURS:
            raise ValueError(f"a server that {behaviour!r}")
        self.behaviour = behaviour
        if behaviour == REFUSES and self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
        elif behaviour != REFUSES and self._http is None:
            self._http = self._listen(self.port)

    def _listen(self, port: int) -> ThreadingHTTPServer:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.authorizations.add(self.headers.get("Authorization", ""))
                self._answer({k: v[0] for k, v in parse_qs(urlparse(self.path).query).items()})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

            def _answer(self, given: dict[str, Any]) -> None:
                if stub.behaviour == SILENT:
                    # Not even when others are answered again: it is for the client to lose patience.
                    stub.closed.wait()
                    self.close_connection = True
                    return
                if stub.behaviour == SLOW:
                    stub.closed.wait(stub.slow_seconds)
                if stub.behaviour == DEAF:
                    stub.call(urlparse(self.path).path.partition("/mlflow/")[2], given)
                    self.close_connection = True
                    return
                code, answer = (
                    (500, {"error_code": "INTERNAL_ERROR", "message": "broken"})
                    if stub.behaviour == BROKEN
                    else (200, stub.call(urlparse(self.path).path.partition("/mlflow/")[2], given))
                )
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        # Waiting for the threads of the silent server would be waiting for ever.
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    def call(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if name == "experiments/get-by-name":
                return {"experiment": {"experiment_id": "1", "name": "cases", "lifecycle_stage": "active"}}
            if name == "runs/create":
                self.num_created += 1
                self.tags |= {t["key"]: t["value"] for t in given.get("tags", [])}
                return {"run": self._run()}
            if name == "runs/get":
                return {"run": self._run()}
            if name == "runs/search":
                known = [f"tags.`{key}` = '{value}'" for key, value in self.tags.items()]
                return {"runs": [self._run()] if given.get("filter") in known else []}
            if name == "runs/update":
                self.status = given.get("status", self.status)
                return {"run_info": self._run()["info"]}
            if name == "runs/log-batch":
                # As a database does, whose key these four are.
                for metric in given.get("metrics", []):
                    row = tuple(metric[k] for k in ("key", "timestamp", "step", "value"))
                    if row not in self.rows:
                        self.rows.add(row)
                        self.metrics.append(metric)
                self.num_batches += 1
                self.params |= {p["key"]: p["value"] for p in given.get("params", [])}
                self.tags |= {t["key"]: t["value"] for t in given.get("tags", [])}
                return {}
            if name == "runs/log-inputs":
                return {}
            if name == "metrics/get-history":
                return {"metrics": [m for m in self.metrics if m["key"] == given["metric_key"]]}
        raise NotImplementedError(f"the stub has no {name}")

    def _run(self) -> dict[str, Any]:
        info = {
            "run_id": RUN_ID,
            "run_uuid": RUN_ID,
            "experiment_id": "1",
            "status": self.status,
            "lifecycle_stage": "active",
            "artifact_uri": self.artifacts.as_uri(),
        }
        latest = list({m["key"]: m for m in self.metrics}.values())
        data = {
            "metrics": latest,
            "params": [{"key": k, "value": v} for k, v in self.params.items()],
            "tags": [{"key": k, "value": v} for k, v in self.tags.items()],
        }
        return {"info": info, "data": data}
