"""A store as a training leaves it: a run with batches, prompts, traces, rewards and failures."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any

from agl_core.store import LightningStore
from agl_core.types import (
    Checkpoint,
    EnqueueRolloutRequest,
    PromptTemplate,
    RolloutConfig,
    Span,
)

QUESTIONS = (
    "Find a room for 6 people on Tuesday at 10:00 with a projector.",
    "Book the smallest room that seats 4 on Friday afternoon.",
    "Which rooms on the second floor are free on Monday?",
    "Move the design review to a room with a whiteboard.",
    "Is there a quiet room for one person right now?",
    "Reserve a room for 12 people near the cafeteria.",
)
PROMPTS = (
    "You book meeting rooms. Answer with the room's name.",
    "You book meeting rooms. Look the rooms up first. Answer with the room's name only.",
    "You book meeting rooms. Look the rooms up first. Name the smallest one that fits the request.",
    "You book rooms. Never look anything up.",
)
PARENTS = (None, "v0", "v1", "v0")
"""The version that each prompt was edited from."""
ANSWER = ("The ", "smallest ", "room ", "that ", "fits ", "is ", "Maple", ".")


async def fill(store: LightningStore, batches: int = 9, group: int = 8) -> list[str]:
    """Fill a store; return the ids of its rollouts, in the order of their creation."""
    chance = random.Random(7)
    ids: list[str] = []
    used = len(PROMPTS) - 1
    versions = max(1, batches // used)
    resources_id = ""
    for number, text in enumerate(PROMPTS):
        prompt = PromptTemplate(template=text, engine="f-string")
        await store.update_resources(f"room-booking/v{number}", {"system_prompt": prompt})
    for batch in range(batches):
        resources_id = f"room-booking/v{min(batch // versions, used - 1)}"
        requests = [
            EnqueueRolloutRequest(
                input={
                    "question": QUESTIONS[(batch + index // 4) % len(QUESTIONS)],
                    "id": index // 4,
                },
                mode="val" if batch % 3 == 2 else "train",
                resources_id=resources_id,
                config=RolloutConfig(max_attempts=2),
                metadata={"run": "room-booking", "batch": f"step-{batch:02d}", "index": index},
            )
            for index in range(group)
        ]
        for queued in await store.enqueue_many_rollouts(requests):
            claim = await store.dequeue_rollout(f"runner-{len(ids) % 4}")
            assert claim is not None
            attempt = claim.attempt.attempt_id
            failed = chance.random() < 0.08
            quality = 1 / (1 + math.exp(-(batch - 3) / 2))
            reward = None if failed else round(min(1, max(0, chance.gauss(quality, 0.18))), 3)
            spans = trace(queued.rollout_id, attempt, queued.input["question"], reward, chance)
            await store.add_many_spans(spans)
            await store.update_attempt(
                queued.rollout_id,
                attempt,
                status="failed" if failed else "succeeded",
                metadata={"error": "RoomNotFound: no room 'Birch'"} if failed else {},
            )
            if failed:
                await store.update_rollout(queued.rollout_id, status="failed")
            ids.append(queued.rollout_id)
    history = [{"version": f"v{n}", "parent": parent} for n, parent in enumerate(PARENTS)]
    state = {"step": batches, "best": resources_id.rpartition("/")[2], "history": history}
    checkpoint = Checkpoint(state=state, metrics={"best": 0.93, "loss": 0.217}, finished=False)
    await store.update_resources("run:room-booking", {"checkpoint": checkpoint})
    await store.update_resources("history:room-booking", {"history": history_of(chance)})
    for worker in range(4):
        await store.update_worker(
            f"runner-{worker}", {"cpu_usage_pct": 31.0 + 7 * worker, "mem_pct": 42.5}
        )
    return ids


def history_of(chance: random.Random, steps: int = 60) -> Checkpoint:
    """Return the history of an interrupted run: its parts, and its metrics over steps."""
    falling = [math.exp(-step / 20) for step in range(steps)]
    series = {
        "grad_norm": [round(0.4 + chance.random() * 0.5, 4) for _ in falling],
        "kl": [round((1 - share) * 0.02 + chance.random() * 0.004, 5) for share in falling],
        "loss": [round(0.2 + 1.1 * share + chance.random() * 0.06, 4) for share in falling],
        "val/reward": [
            None if step % 5 else round(0.9 - 0.7 * share, 4) for step, share in enumerate(falling)
        ],
    }
    now = time.time()
    options = {"group_size": 4, "learning_rate": 1e-6, "tasks_per_step": 2, "api_key": "***"}
    parts = {
        "algorithm": {"type": "GRPO", "config": options},
        "store": {"type": "SqliteLightningStore", "config": {"path": "rooms.db"}},
        "strategy": {"type": "ClientServerExecutionStrategy"},
        "tracer": {"type": "OtelTracer"},
        "adapter": {"type": "TracerTraceToTriplet"},
        "llm_proxy": {"type": "DirectProxy", "config": {"port": 4000}},
    }
    return Checkpoint(
        state={
            "mode": "fit",
            "began": now - 754,
            "ended": now,
            "status": "interrupted",
            "error": None,
            "version": "0.1.0",
            "command": "agl train rooms.toml --run room-booking --resume",
            "n_runners": 4,
            "parts": parts,
            "steps": list(range(steps)),
            "series": series,
            "stride": 1,
        },
        metrics={name: values[-1] or 0.0 for name, values in series.items()},
    )


def trace(
    rollout_id: str, attempt_id: str, question: str, reward: float | None, chance: random.Random
) -> Sequence[Span]:
    """Return the spans of one attempt: an agent, two model calls around a tool call, a reward."""
    now = time.time() - 4
    first, tool, second = (0.2 + chance.random() * 0.8 for _ in range(3))
    tool /= 5
    system = {"role": "system", "parts": [{"type": "text", "content": PROMPTS[1]}]}
    user = {"role": "user", "parts": [{"type": "text", "content": question}]}
    call = {
        "type": "tool_call",
        "id": "call_1",
        "name": "find_rooms",
        "arguments": '{"seats": 6, "equipment": ["projector"], "day": "Tuesday"}',
    }
    found = {
        "role": "tool",
        "parts": [
            {
                "type": "tool_call_response",
                "id": "call_1",
                "response": '[{"name": "Maple", "seats": 6}, {"name": "Cedar", "seats": 20}]',
            }
        ],
    }
    asked = {"role": "assistant", "parts": [call], "finish_reason": "tool_calls"}
    text = {"type": "text", "content": "".join(ANSWER)}
    answered = {"role": "assistant", "parts": [text], "finish_reason": "stop"}
    logprobs = [
        {"token": token, "logprob": round(math.log(chance.uniform(0.03, 1)), 4)} for token in ANSWER
    ]
    made = _Maker(rollout_id, attempt_id)
    root = made.span(
        "room_agent", None, now, now + first + tool + second, {"gen_ai.operation.name": "agent"}
    )
    made.span(
        "chat demo-7b",
        root,
        now,
        now + first,
        model_call([system, user], asked, 212, 31),
    )
    made.span(
        "find_rooms",
        root,
        now + first,
        now + first + tool,
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find_rooms"},
    )
    made.span(
        "chat demo-7b",
        root,
        now + first + tool,
        now + first + tool + second,
        model_call([system, user, asked, found], answered, 298, len(ANSWER))
        | {
            "response_token_ids": [101 + index for index in range(len(ANSWER))],
            "logprobs.content": json.dumps(logprobs),
        },
    )
    if reward is not None:
        end = now + first + tool + second + 0.01
        made.span(
            "agentlightning.annotation",
            None,
            end,
            end,
            {
                "agentlightning.reward.0.name": "primary",
                "agentlightning.reward.0.value": reward,
                "agentlightning.reward.1.name": "format",
                "agentlightning.reward.1.value": 1.0,
            },
        )
    return made.spans


def model_call(prompt: list[Any], answer: Any, taken: int, given: int) -> dict[str, Any]:
    """Return the attributes of a model call in OpenTelemetry's GenAI conventions."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "demo-7b",
        "gen_ai.response.model": "demo-7b",
        "gen_ai.input.messages": json.dumps(prompt),
        "gen_ai.output.messages": json.dumps([answer]),
        "gen_ai.response.finish_reasons": [answer["finish_reason"]],
        "gen_ai.usage.input_tokens": taken,
        "gen_ai.usage.output_tokens": given,
    }


class _Maker:
    def __init__(self, rollout_id: str, attempt_id: str) -> None:
        self._rollout_id, self._attempt_id = rollout_id, attempt_id
        self.spans: list[Span] = []

    def span(
        self, name: str, parent: str | None, start: float, end: float, attributes: dict[str, Any]
    ) -> str:
        sequence_id = len(self.spans) + 1
        made = Span.from_attributes(
            attributes=attributes,
            rollout_id=self._rollout_id,
            attempt_id=self._attempt_id,
            sequence_id=sequence_id,
            span_id=f"{sequence_id:016x}",
            parent_id=parent,
            name=name,
            start_time=start,
            end_time=end,
        )
        self.spans.append(made)
        return made.span_id
