"""Calls that continue the tokens of their conversation: ``history: continue``.

::

    exact      prompt = what the template renders of the messages that the agent sent
    continue   prompt = the tokens of the earlier calls as they were sampled + the bridge

The bridge holds the rendered new messages (:mod:`~agl_proxy_direct.bridge`). The backend renders
them, gets the prompt as token ids on its chat route, and parses the answer as it parses any other.
Both have vLLM's form: ``POST /tokenize`` for messages, and ``prompt_token_ids`` in
``kv_transfer_params`` of a chat request (github.com/vllm-project/vllm/pull/48145). The response
names the tokens that the model saw, whatever was asked for; only these are kept and recorded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

from agl_core import semconv
from agl_core.genai import MALFORMED, Json, loads
from agl_core.store import LightningStore
from agl_proxy_direct.bridge import Renderings, find_bridge, to_render
from agl_proxy_direct.history import (
    AttemptHistory,
    Fallback,
    Histories,
    KeptAnswer,
    conversation_keys,
    next_key,
    only_text,
    token_list,
)
from agl_proxy_direct.redaction import send
from agl_proxy_direct.upstream import Upstream, UpstreamError, UpstreamRequest

__all__ = ["Continuation", "Plan"]

logger = logging.getLogger(__name__)

_ANSWERS: Final = semconv.PROMPT_HISTORY + ".answers"
"""Digest of the conversation with each choice, by which a restarted proxy finds its tokens."""
_PARENT: Final = semconv.PROMPT_HISTORY + ".parent"
"""Digest of the conversation whose tokens the prompt begins with."""
_TEMPLATE_FIELDS: Final = ("tools", "chat_template", "chat_template_kwargs")
"""Fields of a chat request that the backend's ``/tokenize`` takes."""
_NO_SUCH_ROUTE: Final = frozenset({403, 404, 405, 501})
_REFUSED: Final = frozenset({400, 422})
_WITHOUT_SECONDS: Final = 60.0
"""How long a backend is not asked again: it may load the model or its adapter meanwhile, and two
small requests a minute cost nothing."""
_LOAD_SECONDS: Final = 30.0
"""Longest wait for the spans of an attempt."""


@dataclass(slots=True)
class Plan:
    """The prompt of one call.

    Attributes:
        state: ``new``: the conversation has no answer yet. ``continued``: the prompt is ``ids``.
            ``exact``: the server renders the messages, because of ``reason``.
        key: Digest of the conversation.
        history: The answers of the attempt.
        model: The model's name on the backend.
        reason: Why the call does not continue its history.
        parent: The answer that it continues.
        ids: The tokens of the prompt; None if the server renders it.
        answers: Digest of the conversation with each choice, once there is a response.
    """

    state: Literal["new", "continued", "exact"]
    key: bytes
    history: AttemptHistory
    model: str = ""
    reason: Fallback | None = None
    parent: KeptAnswer | None = None
    ids: list[int] | None = None
    answers: list[str] = field(default_factory=list[str])

    def fall_back(self, reason: Fallback) -> None:
        """Let the server render the prompt."""
        self.state, self.reason, self.parent, self.ids = "exact", reason, None, None

    def complete(self, body: Json) -> None:
        """Put the tokens of the prompt into a chat request, in place."""
        if self.ids is not None:
            body["kv_transfer_params"] = {"prompt_token_ids": self.ids}

    def attributes(self) -> Json:
        """Return the attributes of the call's span."""
        found: Json = {semconv.PROMPT_HISTORY: self.state}
        if self.reason is not None:
            found[semconv.PROMPT_HISTORY_REASON] = self.reason.value
        if self.parent is not None:
            found[_PARENT] = self.parent.key.hex()
        if self.answers:
            found[_ANSWERS] = self.answers
        return found


class Continuation:
    """Keeps the tokens of conversations, and plans prompts that continue them. For one event loop.

    Args:
        upstream: Sends requests to backends.
        store: Store of the spans, from which the history of an attempt is read after a restart.
        histories: Where histories are kept.
    """

    def __init__(
        self, upstream: Upstream, store: LightningStore, histories: Histories | None = None
    ) -> None:
        self.store = store
        self._upstream = upstream
        self._histories = histories or Histories()
        self._without: dict[tuple[str, str], float] = {}
        """URLs and models of backends that do not render for others, or do not take token ids, and
        until when they are not asked again."""

    def update(self) -> None:
        """Note that the backends were replaced: each is asked again."""
        self._without.clear()

    # -- before a call ---------------------------------------------------------------------------

    async def plan(
        self, attempt: tuple[str, str], model: str, sent: UpstreamRequest
    ) -> Plan | None:
        """Choose the prompt of a call.

        Args:
            attempt: Rollout id and attempt id.
            model: Name of the model.
            sent: The chat request, as it goes to the backend if the server renders the prompt.

        Returns:
            The prompt; None if the request is not one of chat, which the server then says.
        """
        body = cast("Json", sent.body)
        try:
            keys = conversation_keys({**body, "model": model})
            reason = _exception(body)
        except (*MALFORMED, RecursionError):
            return None
        plan = Plan("new", keys[-1], self._histories.of(attempt), sent.backend.model)
        if not any(message.get("role") == "assistant" for message in body["messages"]):
            return plan
        if reason is None and self._is_without(sent.backend.api_base, sent.backend.model):
            reason = Fallback.BACKEND
        if reason is None:
            reason = await self._continue(plan, attempt, keys[:-1], sent)
        if reason is not None:
            plan.fall_back(reason)
        return plan

    async def _continue(
        self, plan: Plan, attempt: tuple[str, str], keys: Sequence[bytes], sent: UpstreamRequest
    ) -> Fallback | None:
        """Find the tokens that a call continues; return the reason if there are none."""
        history = plan.history
        found = history.latest(keys)
        if found is None and not history.loaded:
            if not await self._load(attempt, history):
                return Fallback.STORE
            found = history.latest(keys)
        if found is None:
            return Fallback.FORGOTTEN if history.cut else Fallback.UNKNOWN_HISTORY
        index, answer = found
        body = cast("Json", sent.body)
        messages = cast("list[Json]", body["messages"])
        rendered = await self._render(to_render(messages, index), sent)
        if isinstance(rendered, Fallback):
            return rendered
        calls = bool(messages[index].get("tool_calls"))
        bridge = find_bridge(rendered, answer, calls=calls, stops=bool(body.get("stop")))
        if isinstance(bridge, Fallback):
            return bridge
        plan.state, plan.parent = "continued", answer
        plan.ids = answer.ids() + bridge
        return None

    async def _render(
        self, conversations: Renderings, sent: UpstreamRequest
    ) -> Renderings | Fallback:
        """Let the backend render conversations, side by side."""
        tokens = await asyncio.gather(
            *(
                self._tokenize(messages, sent, head=number > 0)
                for number, messages in enumerate(conversations)
            )
        )
        failed = next((one for one in tokens if isinstance(one, Fallback)), None)
        return failed or Renderings(*cast("list[list[int]]", tokens))

    async def _tokenize(
        self, messages: list[Json], sent: UpstreamRequest, *, head: bool
    ) -> list[int] | Fallback:
        """Return the tokens of messages, with the head of an answer at the end or without."""
        given = cast("Json", sent.body)
        body: Json = {name: given[name] for name in _TEMPLATE_FIELDS if given.get(name) is not None}
        body |= {"model": sent.backend.model, "messages": messages, "add_generation_prompt": head}
        backend = sent.backend
        root = replace(backend, api_base=backend.api_base.rstrip("/").removesuffix("/v1"))
        request = replace(
            sent, backend=root, endpoint="/tokenize", protocol=None, body=body, query=""
        )
        try:
            response = await send(self._upstream, request)
            try:
                raw = await response.read()
            finally:
                await response.close()
        except UpstreamError:
            return Fallback.BACKEND
        if response.status in _NO_SUCH_ROUTE:
            why = f"answers {response.status} to POST /tokenize"
            self._exclude(backend.api_base, backend.model, why)
            return Fallback.BACKEND
        if response.status in _REFUSED:
            return Fallback.TEMPLATE
        try:
            tokens = token_list(loads(raw)["tokens"])
        except MALFORMED:
            tokens = []
        return tokens or Fallback.BACKEND

    def _is_without(self, api_base: str, model: str) -> bool:
        return self._without.get((api_base, model), 0.0) > time.monotonic()

    def _exclude(self, api_base: str, model: str, why: str) -> None:
        if self._is_without(api_base, model):
            return
        self._without[api_base, model] = time.monotonic() + _WITHOUT_SECONDS
        logger.warning(
            "the backend %s %s, so calls of its model %s do not continue their history for %g s",
            api_base,
            why,
            model,
            _WITHOUT_SECONDS,
        )

    # -- after a call ----------------------------------------------------------------------------

    def keep(self, plan: Plan, api_base: str, response: Json) -> None:
        """Keep the tokens of an answer.

        Args:
            plan: The prompt that was planned; it is corrected if the model saw another.
            api_base: URL of the backend.
            response: The whole response, in the shape of chat.
        """
        before = plan.history.tokens
        plan.answers = []
        for choice in cast("list[Json]", response.get("choices") or ()):
            prompt = token_list(choice.get("prompt_token_ids") or response.get("prompt_token_ids"))
            if plan.ids is not None and prompt != plan.ids:
                if prompt:  # an answer may lack them, which says nothing about the next
                    why = "does not take the prompt as token ids"
                    self._exclude(api_base, plan.model, why)
                plan.fall_back(Fallback.IGNORED)
            sampled = token_list(choice.get("token_ids"))
            try:
                key = next_key(plan.key, choice["message"])
            except MALFORMED:
                continue
            plan.answers.append(key.hex())
            if prompt and sampled:
                plan.history.keep(key, plan.parent, prompt, sampled, choice.get("finish_reason"))
        self._histories.grew(plan.history.tokens - before)

    # -- after a restart -------------------------------------------------------------------------

    async def _load(self, attempt: tuple[str, str], history: AttemptHistory) -> bool:
        """Read the history of an attempt from its spans; return whether the store gave them."""
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                page = await self.store.query_spans(*attempt, name=semconv.SPAN_MODEL_CALL)
        except Exception as error:  # a store may raise anything; the span and the log say it
            logger.warning("the history of attempt %s could not be read: %s", attempt[1], error)
            return False
        history.loaded = True
        restored = AttemptHistory()
        for span in page.items:
            if span.status.status_code != "ERROR":
                _restore(restored, span.attributes)
        # What this proxy has kept meanwhile is newer.
        before = history.tokens
        history.merge(restored)
        self._histories.grew(history.tokens - before)
        return True


def _exception(body: Json) -> Fallback | None:
    """Return why a request cannot continue any history."""
    messages = cast("list[Json]", body["messages"])
    if body.get("kv_transfer_params") is not None:
        return Fallback.OWN_PROMPT
    if (
        messages[-1].get("role") == "assistant"
        or body.get("continue_final_message")
        or body.get("add_generation_prompt") is False
    ):
        return Fallback.PREFILL
    return None if all(map(only_text, messages)) else Fallback.NOT_TEXT


def _restore(history: AttemptHistory, attributes: Any) -> None:
    """Keep the answers of a recorded call; a span that is not one of a proxy has none."""
    try:
        keys = [bytes.fromhex(text) for text in attributes.get(_ANSWERS) or ()]
        reasons = [*(attributes.get("gen_ai.response.finish_reasons") or ())]
        parent = history.answers.get(bytes.fromhex(attributes.get(_PARENT) or ""))
    except (TypeError, ValueError) as error:
        logger.debug("the span of a call holds no answers of a proxy: %s", error)
        return
    for position, key in enumerate(keys):
        suffix = f".{position}" if position else ""
        prompt = token_list(
            attributes.get("prompt_token_ids" + suffix) or attributes.get("prompt_token_ids")
        )
        sampled = token_list(attributes.get("response_token_ids" + suffix))
        if not prompt or not sampled:
            continue
        # An answer that was sampled again has the same digest if only its reasoning differs.
        if parent is not None and prompt[: parent.length] != parent.ids():
            parent = None
        finish = reasons[position] if position < len(reasons) else None
        history.keep(key, parent, prompt, sampled, finish)
