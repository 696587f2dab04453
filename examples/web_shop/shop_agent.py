"""The agent: one model call for each action, up to 60, with a window of what it has seen."""

from __future__ import annotations

import functools
from typing import Any

from openai import OpenAI

import agl_core as agl
from shop import Shop, View, make_products

__all__ = ["MAX_STEPS", "client", "instruction", "make_agent"]

MAX_STEPS = 60
_RULES = (
    "You buy a product in a shop. Answer with one action, as the page lists them. Material and "
    "price are on the product's own page. Choose the size, then buy."
)


def make_agent(window: int | None) -> agl.LitAgent[dict[str, Any]]:
    """Return an agent that sends the model the last pages and actions.

    Args:
        window: How many earlier pages, each with the action taken there; None sends all.
    """

    @agl.rollout
    def buy(task: dict[str, Any], llm: agl.LLM) -> float:
        here = client().with_options(base_url=llm.endpoint)  # each attempt has its own URL
        shop = Shop(make_products(), task)
        view = shop.open()
        turns: list[Any] = [{"role": "user", "content": view.text}]
        start: Any = {"role": "system", "content": f"{_RULES}\n{instruction(task)}"}
        for _ in range(MAX_STEPS):
            kept = turns if window is None else turns[-(2 * window + 1) :]
            reply = here.chat.completions.create(model=llm.model, messages=[start, *kept])
            said = reply.choices[0].message.content or ""
            view = act(shop, said)
            if view.done:
                break
            turns += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": view.text},
            ]
        return view.reward

    return buy


@agl.operation(name="act")
def act(shop: Shop, text: str) -> View:
    """Do an action; the operation is in the trace with the page that follows."""
    return shop.act(text)


def instruction(goal: dict[str, Any]) -> str:
    """Return a goal in words."""
    return (
        f"Buy a {goal['colour']} {goal['kind']} of {goal['material']}, size {goal['size']}, "
        f"for at most {goal['limit']}."
    )


@functools.cache
def client() -> OpenAI:
    # One client per process: creating a client loads the certificates.
    return OpenAI(base_url="http://127.0.0.1", api_key="proxied", timeout=60)
