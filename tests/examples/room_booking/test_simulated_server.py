"""The simulated model over real HTTP, with the real OpenAI client."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from agent import TOOLS
from simulated_model import MODEL_NAME, run_in_background

EXAMPLE = Path(__file__).parents[3] / "examples" / "room_booking"
ASK: list[Any] = [
    {"role": "system", "content": "You book rooms. Today is 2026-03-02."},
    {"role": "user", "content": "Please book a room tomorrow at 10:00 for an hour for 4 people."},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_in_background(seed=5) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def test_lists_its_model(client: OpenAI):
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_calls_the_tool_and_then_answers(client: OpenAI):
    first = client.chat.completions.create(model=MODEL_NAME, messages=ASK, tools=TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "list_rooms"
    assert json.loads(call.function.arguments) == {"date": "2026-03-03"}

    room = {"id": "R42", "capacity": 4, "equipment": [], "accessible": True, "booked": []}
    answer: Any = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": json.dumps({"rooms": [room]}),
    }
    history = [*ASK, message.model_dump(exclude_none=True), answer]
    second = client.chat.completions.create(model=MODEL_NAME, messages=history, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "Room R42 looks good for your meeting."
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens > 0
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens


@pytest.mark.parametrize("tools", [TOOLS, None])
def test_streams_the_same_message(client: OpenAI, tools: Any):
    more = {"tools": tools} if tools else {}
    whole = client.chat.completions.create(model=MODEL_NAME, messages=ASK, **more)
    text, calls, finish, usage = "", [], None, None
    stream = client.chat.completions.create(
        model=MODEL_NAME,
        messages=ASK,
        stream=True,
        stream_options={"include_usage": True},
        **more,
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    expected = whole.choices[0]
    assert text == (expected.message.content or "")
    assert finish == expected.finish_reason
    assert [call.function.arguments for call in calls] == [
        call.function.arguments for call in expected.message.tool_calls or []
    ]
    assert usage == whole.usage


def test_takes_content_in_parts(client: OpenAI):
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": ASK[1]["content"]}]}]
    reply = client.chat.completions.create(model=MODEL_NAME, messages=[ASK[0], *parts], tools=TOOLS)
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert json.loads(calls[0].function.arguments) == {"date": "2026-03-03"}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "'gpt-9' does not exist"),
        ({"messages": []}, openai.BadRequestError, "messages: must not be empty"),
        ({"messages": [{"role": "boss"}]}, openai.BadRequestError, "messages.0.role"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools.0.function"),
    ],
)
def test_bad_requests_are_errors_the_client_knows(
    client: OpenAI, change: dict[str, Any], error: type[openai.APIStatusError], words: str
):
    request: dict[str, Any] = {"model": MODEL_NAME, "messages": ASK, **change}
    with pytest.raises(error, match=words) as caught:
        client.chat.completions.create(**request)
    assert caught.value.type == "invalid_request_error"


def test_a_body_that_is_not_json_is_a_bad_request(url: str):
    request = urllib.request.Request(f"{url}/chat/completions", data=b"{oops", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as reply:
        assert reply.code == 400
        assert json.load(reply)["error"]["type"] == "invalid_request_error"


def test_equal_seeds_answer_alike_across_processes(client: OpenAI):
    question: Any = [
        {"role": "user", "content": "Return an improved prompt.\n<prompt>Be {today}.</prompt>"}
    ]

    def draws(one: OpenAI, number: int) -> list[str | None]:
        replies = (
            one.chat.completions.create(model=MODEL_NAME, messages=question) for _ in range(number)
        )
        return [reply.choices[0].message.content for reply in replies]

    here = draws(client, 8)
    with run_in_background(seed=5) as url, OpenAI(base_url=url, api_key="any") as other:
        assert draws(other, 8) == here
    with run_in_background(seed=6) as url, OpenAI(base_url=url, api_key="any") as other:
        assert draws(other, 8) != here


def test_reports_that_it_is_simulated_and_ends_with_its_context(
    capfd: pytest.CaptureFixture[str],
):
    with run_in_background() as url:
        port = int(url.split(":")[2].split("/")[0])
        assert "SIMULATED model" in capfd.readouterr().err
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_ends_with_the_process_that_started_it():
    """The server ends even if that process was killed."""
    script = (
        "import os; from simulated_model import run_in_background\n"
        "with run_in_background() as url:\n"
        "    print(url, flush=True); os.kill(os.getpid(), 9)"
    )
    owner = subprocess.run(
        [sys.executable, "-c", script], cwd=EXAMPLE, capture_output=True, text=True, check=False
    )
    assert owner.returncode == -signal.SIGKILL
    # subprocess.run returned, so all processes that held the pipes have ended, the server too.
    port = int(owner.stdout.split(":")[2].split("/")[0])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


def test_a_server_that_cannot_start_is_an_error():
    server = run_in_background(slip="often")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="did not start"):
        server.__enter__()
