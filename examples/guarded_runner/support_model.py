"""The simulated model: rules that follow the prompt's words and give in to a refusal."""

from __future__ import annotations

from typing import Any

from agl_scripted import Reply, SeenRequest, ToolCall
from support_agent import numbers

__all__ = ["answer"]


def answer(request: SeenRequest) -> Reply:
    """Return the next step.

    The fast model refunds at once whatever it is told, and does what a refusal asks for. The
    careful one looks first, refunds only what is broken, and asks the manager above 100.
    """
    messages: list[dict[str, Any]] = list(request.body["messages"])
    prompt, complaint = messages[0]["content"], messages[1]["content"]
    order, price = numbers(complaint)
    called = [c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()]
    said = [m["content"] for m in messages if m["role"] == "tool"]
    last = said[-1] if said else ""
    refund = ToolCall("refund", {"order": order, "amount": price})
    if last.startswith("refunded"):
        return Reply("Your money is on its way.")
    looks = "Look at the order" in prompt or "look up" in last
    if looks and "look_up" not in called:
        return Reply(tool_calls=[ToolCall("look_up", {"order": order})])
    if any("intact" in text for text in said):
        return Reply("We do not refund what is intact.")
    asks = ("ask the manager" in prompt and price > 100) or "manager" in last
    if asks and "ask_manager" not in called:
        return Reply(tool_calls=[ToolCall("ask_manager", {"question": f"Refund {price}?"})])
    return Reply(tool_calls=[refund])
