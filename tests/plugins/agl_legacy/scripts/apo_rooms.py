"""APO: an agent with a tool picks a meeting room; the algorithm improves its prompt."""

import asyncio
import json
from typing import TypedDict

import agentlightning as agl
from agentlightning.adapter import TraceToMessages
from agentlightning.algorithm.apo import APO
from agentlightning.types import Dataset, PromptTemplate
from openai import AsyncOpenAI, OpenAI

ROOMS = {"Small": 2, "Large": 12}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_rooms",
            "description": "Rooms with their seats.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]


class Booking(TypedDict):
    people: int
    expected: str


@agl.rollout
def book(task: Booking, prompt_template: PromptTemplate) -> float:
    messages = [{"role": "user", "content": prompt_template.format(people=task["people"])}]
    with OpenAI() as client:
        while True:
            reply = (
                client.chat.completions.create(model="simulated", messages=messages, tools=TOOLS)
                .choices[0]
                .message
            )
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                return float(task["expected"] in (reply.content or ""))
            for call in reply.tool_calls:
                result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps(ROOMS)}
                messages.append(result)


def datasets() -> tuple[Dataset[Booking], Dataset[Booking]]:
    tasks: list[Booking] = [
        {"people": 2, "expected": "Small"},
        {"people": 9, "expected": "Large"},
        {"people": 1, "expected": "Small"},
        {"people": 10, "expected": "Large"},
    ]
    return tasks[:2], tasks[2:]


if __name__ == "__main__":
    algorithm = APO[Booking](
        AsyncOpenAI(),
        gradient_model="critic",
        apply_edit_model="editor",
        val_batch_size=2,
        gradient_batch_size=2,
        beam_width=1,
        branch_factor=1,
        beam_rounds=1,
    )
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=2,
        strategy="shm",
        tracer=agl.OtelTracer(),
        initial_resources={
            "prompt_template": PromptTemplate(template="A room for {people}?", engine="f-string")
        },
        adapter=TraceToMessages(),
    )
    train, val = datasets()
    trainer.fit(agent=book, train_dataset=train, val_dataset=val)
    print("best:", algorithm.get_best_prompt().template)
    latest = asyncio.run(trainer.store.get_latest_resources())
    assert latest is not None
    print("latest:", list(latest.resources))
