"""A fake of Tinker's HTTP API on loopback, with the routes and messages of the library `tinker`.

It serves what a fine-tuning needs: sessions, models with an adapter, forward_backward, optim_step,
saved weights and samples. As in the service each of them is a request first, whose result is asked
for until it is there. Wrong calls fail as the client expects it: a wrong key, an unknown model or
path, another loss, targets of another length, a step out of order. The model is one matrix, which
is really trained (``fake_model.py``).
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from tinker.proto import tinker_public_pb2 as messages

from fake_model import Adam, Base, gradient, sample

__all__ = ["KEY", "MODEL", "FakeTinker", "Refusal", "serving"]

MODEL = "fake/one-matrix"
KEY = "tml-fake"
_PROTO = "application/x-protobuf"
_UNSERVED = {"stop": None, "seed": None, "top_k": -1, "top_p": 1}


class Refusal(Exception):
    """An error reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Run:
    """A model in training: the weights, their gradient, and the number of its last request."""

    weights: Any
    rank: int
    gradient: Any = None
    adam: Adam = field(default_factory=Adam)
    seq_id: int = 0


class FakeTinker:
    """The state of the service.

    Args:
        base: The one base model.
        folder: Where clients find the tokenizer.
    """

    def __init__(self, base: Base, folder: str) -> None:
        self._base = base
        self._folder = folder
        base.tokenizer.save_pretrained(folder)
        self._dice = np.random.default_rng(0)
        self._sessions: set[str] = set()
        self._runs: dict[str, _Run] = {}
        self._saved: dict[str, Any] = {}
        self._samplers: dict[str, dict[str, Any]] = {}
        self._results: dict[str, Any] = {}
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def reply(self, method: str, path: str, body: bytes, content_type: str) -> Any:
        """Answer one request, with bytes for a protocol buffer, else with an object for JSON.

        Raises:
            Refusal: The service would refuse it.
        """
        request: Any = body if content_type == _PROTO else json.loads(body or b"{}")
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            # Chunks in order, since the fake does not wait for a late one.
            ("POST", "client/config", lambda: {"parallel_fwdbwd_chunks": False}),
            ("POST", "client/dynamic_config", dict),
            ("POST", "telemetry", lambda: {"status": "accepted"}),
            ("POST", "create_session", self._open),
            ("POST", "session_heartbeat", lambda: self._session(request["session_id"], {})),
            ("POST", "sessions/([^/]+)/finish", self._finish),
            ("POST", "create_model", lambda: self._create(request)),
            ("POST", "get_info", lambda: self._info(request["model_id"])),
            ("POST", "forward_backward", lambda: self._forward_backward(request)),
            ("POST", "optim_step", lambda: self._step(request)),
            ("POST", "save_weights_for_sampler", lambda: self._save(request)),
            ("POST", "create_sampling_session", lambda: self._sampler(request)),
            ("GET", "samplers/([^/]+)", lambda name: self._shown(unquote(name))),
            ("POST", "asample", lambda: self._sample(request)),
            ("POST", "retrieve_future", lambda: self._retrieve(request["request_id"])),
        ]
        for wanted, pattern, act in routes:
            found = re.fullmatch(f"/api/v1/{pattern}", path)
            if found and wanted == method:
                with self._lock:
                    return act(*found.groups())
        raise Refusal(404, f"no route {method} {path}")

    # -- requests and their results ------------------------------------------------------------

    def _promise(self, name: str, result: Any, **more: Any) -> dict[str, Any]:
        self._results[name] = result
        return {"request_id": name, **more}

    def _retrieve(self, name: str) -> Any:
        if name not in self._results:
            raise Refusal(404, f"no request {name}")
        if name not in self._asked:  # the first answer to each is that it still runs
            self._asked.add(name)
            raise Refusal(408, "active")
        return self._results[name]

    def _training(self, model_id: str, seq_id: int, act: Callable[[_Run], Any]) -> dict[str, Any]:
        """Run a request of a model in training, unless it is one that was sent again."""
        run = self._run(model_id)
        name = f"{model_id}:{seq_id}"
        if name in self._results:
            return {"request_id": name, "model_id": model_id}
        if seq_id != run.seq_id + 1:
            raise Refusal(422, f"request {seq_id} of {model_id} follows {run.seq_id}")
        run.seq_id = seq_id
        try:
            result = act(run)
        except ValueError as error:
            result = {"error": str(error), "category": "user"}
        return self._promise(name, result, model_id=model_id)

    # -- sessions ------------------------------------------------------------------------------

    def _open(self) -> dict[str, Any]:
        name = f"session-{len(self._sessions) + 1}"
        self._sessions.add(name)
        return {"session_id": name}

    def _finish(self, name: str) -> dict[str, Any]:
        self._session(name, None)
        return {}

    def _session(self, name: str, reply: Any) -> Any:
        if name not in self._sessions:
            raise Refusal(404, f"no session {name}")
        return reply

    # -- training ------------------------------------------------------------------------------

    def _run(self, name: str) -> _Run:
        if name not in self._runs:
            raise Refusal(404, f"no model {name}")
        return self._runs[name]

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        self._session(request["session_id"], None)
        if request["base_model"] != MODEL:
            raise Refusal(400, f"{request['base_model']} cannot be fine-tuned")
        name = f"{request['session_id']}:train:{request['model_seq_id']}"
        rank = (request.get("lora_config") or {}).get("rank", 32)
        self._runs.setdefault(name, _Run(self._base.weights, rank))
        return self._promise(f"{name}:create", {"model_id": name, "type": "create_model"})

    def _info(self, name: str) -> dict[str, Any]:
        run = self._run(name)
        about = {"model_name": MODEL, "tokenizer_id": self._folder}
        return {"model_id": name, "model_data": about, "is_lora": True, "lora_rank": run.rank}

    def _forward_backward(self, body: bytes) -> dict[str, Any]:
        request = messages.ForwardBackwardRequest.FromString(body)

        def act(run: _Run) -> bytes:
            if request.loss_fn != "cross_entropy":
                raise ValueError(f"the fake has no loss {request.loss_fn}")
            found, total, loss = [], 0.0, 0.0
            for datum in request.data:
                tokens = [
                    token
                    for chunk in datum.model_input
                    for token in np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
                ]
                inputs = datum.loss_fn_inputs
                targets = np.frombuffer(inputs["target_tokens"].dense, np.int64)
                counts = np.frombuffer(inputs["weights"].dense, np.float32)
                if not len(tokens) == len(targets) == len(counts):
                    raise ValueError("target_tokens and weights must be as long as the input")
                logprobs, change = gradient(run.weights, tokens, targets, counts)
                found.append(logprobs)
                total += change
                loss -= float(logprobs @ counts)
            if not request.forward_only:
                run.gradient = total if run.gradient is None else run.gradient + total
            return _output(found, loss)

        return self._training(request.model_id, request.seq_id, act)

    def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        def act(run: _Run) -> dict[str, Any]:
            if run.gradient is None:
                raise ValueError("optim_step without a gradient")
            run.weights = run.adam.step(run.weights, run.gradient, request["adam_params"])
            run.gradient = None
            return {"metrics": {}}

        return self._training(request["model_id"], request["seq_id"], act)

    def _save(self, request: dict[str, Any]) -> dict[str, Any]:
        def act(run: _Run) -> dict[str, Any]:
            path = f"tinker://{request['model_id']}/sampler_weights/{request['path']}"
            self._saved[path] = run.weights
            return {"path": path, "type": "save_weights_for_sampler"}

        return self._training(request["model_id"], request["seq_id"], act)

    # -- sampling ------------------------------------------------------------------------------

    def _sampler(self, request: dict[str, Any]) -> dict[str, Any]:
        self._session(request["session_id"], None)
        path, known = request.get("model_path"), {MODEL: self._base.weights}
        wanted = path or request.get("base_model")
        if wanted not in known | self._saved:
            raise Refusal(400, f"no weights {wanted}")
        name = f"{request['session_id']}:sample:{request['sampling_session_seq_id']}"
        self._samplers[name] = {
            "weights": (known | self._saved)[wanted],
            "shown": {"sampler_id": name, "base_model": MODEL, "model_path": path},
        }
        return {"sampling_session_id": name}

    def _shown(self, name: str) -> dict[str, Any]:
        if name not in self._samplers:
            raise Refusal(404, f"no sampler {name}")
        return self._samplers[name]["shown"]

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        sampler = request["sampling_session_id"]
        self._shown(sampler)
        params = request["sampling_params"]
        for option, only in _UNSERVED.items():
            if params.get(option, only) != only:
                raise Refusal(400, f"the fake has no sampling by {option}")
        prompt = [token for chunk in request["prompt"]["chunks"] for token in chunk["tokens"]]
        reply, end = messages.SampleResponse(), self._base.tokenizer.eos_token_id
        for _ in range(request["num_samples"]):
            tokens, logprobs = sample(
                self._samplers[sampler]["weights"],
                prompt,
                end,
                params.get("max_tokens") or 64,
                params["temperature"],
                self._dice,
            )
            reply.sequences.add(
                stop_reason=messages.STOP_REASON_STOP
                if tokens[-1] == end
                else messages.STOP_REASON_LENGTH,
                tokens=np.array(tokens, np.int32).tobytes(),
                logprobs=np.array(logprobs, np.float32).tobytes(),
            )
        name = f"{sampler}:{request['seq_id']}"
        ids = [f"{name}:{number}" for number in range(request["num_samples"])]
        return self._promise(name, reply.SerializeToString(), sample_sequence_ids=ids)


def _output(logprobs: list[Any], loss: float) -> bytes:
    """Return the result of a forward_backward."""
    sizes = [0, *(4 * len(row) for row in logprobs)]
    reply = messages.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = reply.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(logprobs))
    column = record.fields["logprobs"]
    column.dtype = messages.DTYPE_FLOAT32
    column.data = np.concatenate(logprobs).astype(np.float32).tobytes()
    column.offsets = np.cumsum(sizes).astype(np.int64).tobytes()
    reply.metrics["loss:sum"] = loss
    return reply.SerializeToString()


@contextmanager
def serving(base: Base) -> Iterator[str]:
    """Serve a base model on a free loopback port; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        # A connection per request: the client never closes the one that it reads its options from.
        protocol_version = "HTTP/1.0"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                if self.headers.get("x-api-key") != KEY:
                    raise Refusal(401, "unknown key")
                kind = self.headers.get("content-type") or ""
                answer = fake.reply(self.command, urlsplit(self.path).path, body, kind)
                status = 200
            except Refusal as refusal:
                status, answer = refusal.status, {"detail": str(refusal)}
                if status == 408:
                    answer = {"type": "try_again", "request_id": "", "queue_state": str(refusal)}
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", _PROTO if data is answer else "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _handle  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with tempfile.TemporaryDirectory() as folder:
        fake = FakeTinker(base, folder)
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
