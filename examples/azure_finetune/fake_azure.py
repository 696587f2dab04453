"""A fake of Azure OpenAI on loopback: files, fine-tuning jobs, deployments and chat.

It answers as the documented API does, wrong requests included: a missing key or version, rows that
are not chats, fewer than ten rows, an unknown file, a model without a deployment. A job takes three
looks until it has succeeded, a deployment two. The gain of a fine-tuned model is a simulation: it
repeats the answers of its training file.

https://learn.microsoft.com/azure/ai-services/openai/how-to/fine-tuning
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["BASE_MODEL", "FakeAzure", "Refusal", "serving"]

BASE_MODEL = "gpt-4.1-mini-2025-04-14"
_MIN_ROWS = 10
_JOB = ("pending", "running", "succeeded")


class Refusal(Exception):
    """An error reply."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": code, "message": message}}


class FakeAzure:
    """The state of one resource.

    Args:
        answer: Answers a question as the base model does.
    """

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer
        self._files: dict[str, list[dict[str, Any]]] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._learned: dict[str, dict[str, str]] = {BASE_MODEL: {}}
        self._deployments: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def reply(self, method: str, path: str, body: bytes, content_type: str) -> dict[str, Any]:
        """Answer one request.

        Raises:
            Refusal: The API would refuse it.
        """
        routes: list[tuple[str, str, Callable[..., dict[str, Any]]]] = [
            ("POST", r"/openai/files", lambda: self._upload(body, content_type)),
            ("POST", r"/openai/fine_tuning/jobs", lambda: self._start(json.loads(body))),
            ("GET", r"/openai/fine_tuning/jobs/([\w-]+)", self._look),
            ("PUT", r"/subscriptions/.*/deployments/([\w-]+)", lambda n: self._deploy(n, body)),
            ("GET", r"/subscriptions/.*/deployments/([\w-]+)", self._deployment),
            ("DELETE", r"/subscriptions/.*/deployments/([\w-]+)", self._undeploy),
            (
                "POST",
                r"/openai/deployments/([\w-]+)/chat/completions",
                lambda n: self._chat(n, json.loads(body)),
            ),
        ]
        for wanted, pattern, act in routes:
            found = re.fullmatch(pattern, path)
            if found and wanted == method:
                with self._lock:
                    return act(*found.groups())
        raise Refusal(404, "404", f"Resource not found: {method} {path}")

    def _upload(self, body: bytes, content_type: str) -> dict[str, Any]:
        form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
        parts: dict[Any, Any] = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.walk()
            if not part.is_multipart()
        }
        if parts.get("purpose") != b"fine-tune" or "file" not in parts:
            raise Refusal(400, "invalidPayload", "The form needs a file and purpose=fine-tune.")
        rows = [_row(number, line) for number, line in enumerate(parts["file"].splitlines(), 1)]
        if len(rows) < _MIN_ROWS:
            raise Refusal(400, "invalidPayload", f"{len(rows)} rows; at least {_MIN_ROWS}.")
        name = f"file-{len(self._files) + 1}"
        self._files[name] = rows
        return {
            "id": name,
            "object": "file",
            "purpose": "fine-tune",
            "filename": "train.jsonl",
            "bytes": len(body),
            "created_at": 0,
            "status": "processed",
        }

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("model") not in self._learned:
            raise Refusal(400, "invalidPayload", f"{request.get('model')} cannot be fine-tuned.")
        if request.get("training_file") not in self._files:
            raise Refusal(400, "invalidPayload", f"no file {request.get('training_file')}")
        name = f"ftjob-{len(self._jobs) + 1}"
        job = {
            "id": name,
            "object": "fine_tuning.job",
            "model": request["model"],
            "training_file": request["training_file"],
            "fine_tuned_model": None,
            "status": _JOB[0],
            "created_at": 0,
            "hyperparameters": {"n_epochs": 1},
            "organization_id": "fake",
            "result_files": [],
            "seed": request.get("seed") or 0,
        }
        self._jobs[name] = job
        return dict(job)

    def _look(self, name: str) -> dict[str, Any]:
        if name not in self._jobs:
            raise Refusal(404, "notFound", f"no job {name}")
        job = self._jobs[name]
        seen = dict(job)
        job["status"] = _JOB[min(_JOB.index(job["status"]) + 1, len(_JOB) - 1)]
        if job["status"] == "succeeded" and job["fine_tuned_model"] is None:
            tuned = f"{job['model']}.ft-{name.rpartition('-')[2]}"
            job["fine_tuned_model"] = tuned
            rows = self._files[job["training_file"]]
            told = {row["messages"][-2]["content"]: row["messages"][-1]["content"] for row in rows}
            self._learned[tuned] = self._learned[job["model"]] | told
        return seen

    def _deploy(self, name: str, body: bytes) -> dict[str, Any]:
        request = json.loads(body)
        model = request.get("properties", {}).get("model", {}).get("name")
        if model not in self._learned:
            raise Refusal(400, "DeploymentModelNotSupported", f"no model {model}")
        if "sku" not in request:
            raise Refusal(400, "InvalidResourceProperties", "sku is missing")
        self._deployments[name] = {"model": model, "state": "Creating"}
        return self._shown(name)

    def _deployment(self, name: str) -> dict[str, Any]:
        shown = self._shown(name)
        self._deployments[name]["state"] = "Succeeded"
        return shown

    def _undeploy(self, name: str) -> dict[str, Any]:
        shown = self._shown(name)
        del self._deployments[name]
        return shown

    def _shown(self, name: str) -> dict[str, Any]:
        if name not in self._deployments:
            raise Refusal(404, "ResourceNotFound", f"no deployment {name}")
        found = self._deployments[name]
        model = {"format": "OpenAI", "name": found["model"], "version": "1"}
        return {"name": name, "properties": {"model": model, "provisioningState": found["state"]}}

    def _chat(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        deployment = self._deployments.get(name)
        if deployment is None or deployment["state"] != "Succeeded":
            raise Refusal(404, "DeploymentNotFound", f"The deployment {name} does not exist.")
        question = request["messages"][-1]["content"]
        learned = self._learned[deployment["model"]].get(question)
        said = self._answer(question) if learned is None else learned
        choice = {"index": 0, "finish_reason": "stop"}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": deployment["model"],
            "choices": [{**choice, "message": {"role": "assistant", "content": said}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        }


def _row(number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        *_, asked, answered = row["messages"]
        good = (asked["role"], answered["role"]) == ("user", "assistant")
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise Refusal(400, "invalidPayload", f"line {number} is not a chat")
    return row


@contextmanager
def serving(azure: FakeAzure) -> Iterator[str]:
    """Serve a resource on a free loopback port; yield its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                if not (self.headers.get("api-key") or self.headers.get("authorization")):
                    raise Refusal(401, "401", "Access denied: no key.")
                if "api-version" not in parse_qs(url.query):
                    raise Refusal(404, "404", "Resource not found: no api-version.")
                kind = self.headers.get("content-type") or ""
                status, answer = 200, azure.reply(self.command, url.path, body, kind)
            except Refusal as refusal:
                status, answer = refusal.status, refusal.body
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
