"""Rows made from spans equal rows made from the server's raw responses, token for token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from agl_adapter_trajectory import TraceToTrajectory
from agl_proxy_direct import DirectProxy
from agl_server_hf import HFServer
from agl_store_memory import InMemoryLightningStore
from agl_tiny_model import WEATHER_TOOL


@dataclass
class RawResponse:
    """One response as the server sent it."""

    body: bytes = b""
    status: int = 0

    def read(self) -> tuple[list[int], list[int], list[float]]:
        """Return the ids of prompt and answer, and the answer's log-probabilities."""
        if not self.body.startswith(b"data: "):
            whole = json.loads(self.body)
            (choice,) = whole["choices"]
            prompt = whole.get("prompt_token_ids") or choice["prompt_token_ids"]
            return prompt, choice["token_ids"], _logprobs(choice)
        prompt: list[int] = []
        ids: list[int] = []
        logprobs: list[float] = []
        for event in self.body.split(b"\n\n"):
            if not event.startswith(b"data: {") or not event.endswith(b"}"):
                continue  # the end marker, or a truncated event
            chunk = json.loads(event[6:])
            prompt = chunk.get("prompt_token_ids") or prompt
            for choice in chunk["choices"]:
                prompt = choice.get("prompt_token_ids") or prompt
                ids += choice.get("token_ids") or []
                logprobs += _logprobs(choice)
        return prompt, ids, logprobs


def _logprobs(choice: dict[str, Any]) -> list[float]:
    logprobs = choice.get("logprobs") or {}
    if "token_logprobs" in logprobs:
        return logprobs["token_logprobs"]
    return [entry["logprob"] for entry in logprobs.get("content") or ()]


@dataclass
class Recorder:
    """A relay between proxy and server that records every response."""

    target: str = ""
    seen: list[RawResponse] = field(default_factory=list[RawResponse])
    cut_after: int | None = None
    """Abort the connection after so many events of the next response."""
    hold_after: int | None = None
    """Number of events of the next response after which the relay stops until :attr:`released`."""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def relay(self, request: web.Request) -> web.StreamResponse:
        raw = RawResponse()
        self.seen.append(raw)
        cut, self.cut_after = self.cut_after, None
        hold, self.hold_after = self.hold_after, None
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.target + request.path, data=await request.read(),
                headers={"content-type": "application/json"},
            ) as answer,
        ):  # fmt: skip
            raw.status = answer.status
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            # On a busy machine, one chunk has many events.
            async for part in _parts(answer.content):
                await response.write(part)
                raw.body += part
                events = raw.body.count(b"\n\n")
                if cut is not None and events >= cut:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                if hold is not None and events >= hold:
                    await self.released.wait()
                    break
            return response


async def _parts(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Yield a body in pieces of which each has one event's end at most."""
    async for chunk in content.iter_any():
        while (end := chunk.find(b"\n\n") + 2) > 1:
            yield chunk[:end]
            chunk = chunk[end:]
        if chunk:
            yield chunk


@dataclass
class Setting:
    store: InMemoryLightningStore
    proxy: DirectProxy
    recorder: Recorder
    model: str

    async def rollout(
        self, agent: Callable[[AsyncOpenAI, str], Awaitable[Any]], *, spans_later: int = 0
    ) -> tuple[list[RawResponse], list[Any], Any]:
        """Run an agent; return the raw responses, the rows, and the adapter's report.

        Args:
            agent: The agent.
            spans_later: Spans to wait for: the proxy notices after the agent's end that a client
                has left, and flushes only what has ended.
        """
        self.recorder.seen.clear()
        rollout = await self.store.start_rollout(input="-")
        llm = self.proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="-", max_retries=0) as client:
            await agent(client, self.model)
        await self.proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
        spans = (await self.store.query_spans(rollout.rollout_id)).items
        async with asyncio.timeout(60):
            while len(spans) < spans_later:
                await asyncio.sleep(0.01)
                spans = (await self.store.query_spans(rollout.rollout_id)).items
        rows, report = TraceToTrajectory().adapt_with_report(spans) if spans else ([], None)
        return list(self.recorder.seen), rows, report


@asynccontextmanager
async def setting(model: Path) -> AsyncGenerator[Setting]:
    recorder, store = Recorder(), InMemoryLightningStore()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.relay)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    async with HFServer(model, threads=1, seed=4) as server:
        recorder.target = server.base_url.removesuffix("/v1")
        parameters = {"model": f"hosted_vllm/{server.model}", "api_base": url}
        entry = {"model_name": server.model, "litellm_params": parameters}
        proxy = DirectProxy(store=store, model_list=[entry], num_retries=0)
        await proxy.start()
        proxy.set_model_version("step-7")
        try:
            yield Setting(store, proxy, recorder, server.model)
        finally:
            await proxy.stop()
            await runner.cleanup()


def rows_of(raws: list[RawResponse]) -> list[tuple[list[int], list[int], list[float]]]:
    """Return the expected rows; a prompt that starts with a row's tokens continues that row."""
    rows: list[tuple[list[int], list[int], list[float]]] = []
    for prompt, ids, logprobs in (raw.read() for raw in raws if raw.status == 200):
        if not ids:
            continue
        fitting = [row for row in rows if prompt[: len(row[0])] == row[0]]
        if fitting:
            row = max(fitting, key=lambda one: len(one[0]))
            new = prompt[len(row[0]) :]
        else:
            row = ([], [], [])
            rows.append(row)
            new = prompt
        row[0].extend([*new, *ids])
        row[1].extend([0] * len(new) + [1] * len(ids))
        row[2].extend([0.0] * len(new) + logprobs)
    return rows


def check(raws: list[RawResponse], rows: list[Any]) -> None:
    expected = rows_of(raws)
    assert [row.token_ids for row in rows] == [ids for ids, _, _ in expected]
    assert [row.mask for row in rows] == [mask for _, mask, _ in expected]
    for row, (_, _, logprobs) in zip(rows, expected, strict=True):
        assert row.logprobs == logprobs  # exact equality
        assert row.certificate.model_versions == ["step-7"]
        assert row.certificate.ids_present
        assert row.certificate.logprobs_present


PARIS: Any = {"role": "user", "content": "How is the weather in Paris?"}
TOOLS: Any = [WEATHER_TOOL]


async def converse(
    client: AsyncOpenAI, model: str, *, stream: bool, temperature: float = 0.0
) -> list[Any]:
    """Ask for the weather, answer the tool call, and continue the conversation."""
    messages: list[Any] = [PARIS]
    for turn in range(3):
        options: Any = {
            "model": model,
            "messages": messages,
            "tools": TOOLS,
            "temperature": temperature,
            "max_tokens": 60,
        }
        if stream:
            said: dict[str, Any] = {"role": "assistant", "content": ""}
            async for chunk in await client.chat.completions.create(stream=True, **options):
                delta = chunk.choices[0].delta if chunk.choices else None
                if delta is None:
                    continue
                said["content"] += delta.content or ""
                for call in delta.tool_calls or ():
                    said.setdefault("tool_calls", []).append(
                        call.model_dump(exclude={"index"}, exclude_none=True)
                    )
        else:
            whole = await client.chat.completions.create(**options)
            said = whole.choices[0].message.model_dump(exclude_none=True)
        messages.append(said)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            for call in said.get("tool_calls") or ()
        ]
        if not said.get("tool_calls") and turn:
            messages.append({"role": "user", "content": "Count to five."})
    return messages


async def test_every_kind_of_rollout(taught: Path):
    """Run every kind with one server, because its start takes seconds."""
    async with setting(taught) as s:
        for stream in (False, True):
            # Several turns and a tool make one row: no text is tokenised twice.
            raws, rows, _ = await s.rollout(partial(converse, stream=stream))
            assert len(raws) == 3
            check(raws, rows)
            assert len(rows) == 1
            assert len(rows[0].responses) == 3
            assert sum(rows[0].mask) < len(rows[0].mask)

        # At a high temperature, answers decode to text that tokenises differently.
        broken = 0
        for _ in range(6):
            raws, rows, _ = await s.rollout(partial(converse, stream=False, temperature=1.8))
            check(raws, rows)
            broken += len(rows) > 1
        assert broken

        async def truncated(client: AsyncOpenAI, model: str) -> None:
            messages: Any = [PARIS]
            for stream in (False, True):
                answer: Any = await client.chat.completions.create(
                    model=model, messages=messages, max_tokens=5, stream=stream, temperature=1
                )
                if stream:
                    async for _ in answer:
                        pass

        raws, rows, _ = await s.rollout(truncated)
        check(raws, rows)
        assert [len(row.token_ids) - row.prompt_length for row in rows] == [5, 5]

        async def completions(client: AsyncOpenAI, model: str) -> None:
            await client.completions.create(model=model, prompt="One, two", max_tokens=6)
            async for _ in await client.completions.create(
                model=model, prompt=[5, 6, 7], max_tokens=6, stream=True
            ):
                pass

        raws, rows, _ = await s.rollout(completions)
        assert len(rows) == 2
        check(raws, rows)

        async def refused_then_right(client: AsyncOpenAI, model: str) -> None:
            with pytest.raises(Exception, match="presence_penalty"):
                await client.chat.completions.create(
                    model=model,
                    messages=[PARIS],
                    presence_penalty=1.0,  # pyright: ignore
                )
            await converse(client, model, stream=False)

        raws, rows, report = await s.rollout(refused_then_right)
        assert [raw.status for raw in raws] == [400, 200, 200, 200]
        check(raws, rows)
        assert report.count("call", "its answer broke off") == 1

        async def gives_up(client: AsyncOpenAI, model: str) -> None:
            s.recorder.hold_after = 40  # the answer cannot end before the agent leaves
            stream = await client.chat.completions.create(
                model=model, messages=[PARIS], max_tokens=600, stream=True, temperature=1.5,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            seen = 0
            async for _ in stream:
                seen += 1
                if seen == 20:
                    break
            await stream.close()

        raws, rows, _ = await s.rollout(gives_up, spans_later=1)
        s.recorder.released.set()
        (row,) = rows
        prompt, ids, logprobs = raws[0].read()
        got = len(row.token_ids) - len(prompt)
        assert 15 <= got <= 40
        assert row.token_ids == prompt + ids[:got]
        assert row.logprobs == [0.0] * len(prompt) + logprobs[:got]

        async def breaks(client: AsyncOpenAI, model: str) -> None:
            s.recorder.cut_after = 4
            with pytest.raises(Exception):  # noqa: B017 -- the client's exception varies
                async for _ in await client.chat.completions.create(
                    model=model, messages=[PARIS], max_tokens=600, stream=True,
                    extra_body={"ignore_eos": True},
                ):  # fmt: skip
                    pass

        raws, rows, _ = await s.rollout(breaks)
        prompt, ids, _ = raws[0].read()
        for row in rows:  # one row, if the received chunks held a token
            got = len(row.token_ids) - len(prompt)
            assert row.token_ids == prompt + ids[:got]
