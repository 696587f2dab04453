"""Converts the spans of a tracer to triplets: one per model call, with its reward."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agl_adapters.chat import image_urls
from agl_adapters.config import TripletConfig
from agl_adapters.recorded_calls import call_order
from agl_adapters.rewards import match_rewards
from agl_adapters.tree import (
    CallRules,
    MatchedCall,
    TraceTree,
    keep_used_choices,
    leave_out_auxiliary,
)
from agl_core.adapter import AdapterReport, Reason, TraceToTripletBase
from agl_core.plugins import configured_by, missing_package
from agl_core.types import RewardMatchPolicy, SpanLike, Triplet

_logger = logging.getLogger(__name__)


class TracerTraceToTriplet(TraceToTripletBase):
    r"""Converts the spans of an attempt to triplets, in the order of the trace's tree.

    ``prompt`` is ``{"token_ids": list[int], "raw_content": list, "image_urls": list[str]}``;
    ``response`` is ``{"token_ids": list[int], "raw_content": list}`` and, where captured,
    ``"logprobs"``: one entry per response token in OpenAI's form. ``raw_content`` keeps the shape
    in which the tracer wrote it. Token ids that were not captured are an empty list. ``metadata``
    holds ``request`` and ``response`` (their parameters), ``response_id`` and ``agent_name``.
    """

    @configured_by(TripletConfig)
    def __init__(self, config: TripletConfig) -> None:
        self.repair_hierarchy = config.repair_hierarchy
        self.llm_call_match = config.llm_call_match
        self.agent_match = config.agent_match
        self.exclude_llm_call_in_reward = config.exclude_llm_call_in_reward
        self.reward_match = config.reward_match
        self.skip_empty_token_spans = config.skip_empty_token_spans
        self.keep_auxiliary = config.keep_auxiliary

    @property
    def rules(self) -> CallRules:
        """Which spans count as calls."""
        return CallRules(self.llm_call_match, self.agent_match, self.exclude_llm_call_in_reward)

    def adapt_with_report(
        self, source: Sequence[SpanLike], /
    ) -> tuple[list[Triplet], AdapterReport]:
        """Convert the spans of one attempt.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        report = AdapterReport()
        tree = self.tree(source, report)
        triplets = tree_to_triplets(
            tree,
            self.rules,
            reward_match=self.reward_match,
            skip_empty_token_spans=self.skip_empty_token_spans,
            keep_auxiliary=self.keep_auxiliary,
            report=report,
        )
        return triplets, report

    def tree(self, source: Sequence[SpanLike], report: AdapterReport | None = None) -> TraceTree:
        """Return the tree from which :meth:`adapt` reads calls and rewards.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        report = AdapterReport() if report is None else report
        return TraceTree.read(source, report, repair_hierarchy=self.repair_hierarchy)

    def visualize(
        self,
        source: Sequence[SpanLike],
        /,
        filename: str | Path = "trace_tree",
        interested_span_match: str | None = None,
    ) -> TraceTree:
        """Draw the tree of a trace to ``<filename>.png``; agl-trace does it.

        Returns:
            The tree drawn.

        Raises:
            MissingDependencyError: agl-trace or the ``graphviz`` package is not installed.
        """
        try:
            draw = import_module("agl_trace").visualize_tree
        except ModuleNotFoundError as error:
            if error.name != "agl_trace":
                raise
            raise missing_package("drawing a trace", "agl-trace") from error
        tree = self.tree(source)
        draw(tree, filename, interested_span_match)
        return tree


def tree_to_triplets(
    tree: TraceTree,
    rules: CallRules,
    *,
    reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
    skip_empty_token_spans: bool = False,
    keep_auxiliary: bool = False,
    final_reward: float | None = None,
    report: AdapterReport | None = None,
) -> list[Triplet]:
    """Convert the calls of a tree to triplets.

    Args:
        tree: The trace, already repaired if needed.
        rules: Which spans count as calls.
        reward_match: How a reward is matched to a call.
        skip_empty_token_spans: Leave out calls without token ids, before rewards are matched.
        keep_auxiliary: Keep auxiliary calls.
        final_reward: Reward of the triplet of the call that was made last; replaces the one that
            was matched to it.
        report: Where to count what was left out.
    """
    report = AdapterReport() if report is None else report
    found = tree.find_llm_calls(rules, report)
    if not keep_auxiliary:
        found = leave_out_auxiliary(found, report)
    found = keep_used_choices(found, report)
    triplets: dict[str, Triplet] = {}
    matched: list[TraceTree] = []
    for entry in found:
        triplet = _triplet(entry, report)
        if skip_empty_token_spans and not (
            triplet.prompt["token_ids"] and triplet.response["token_ids"]
        ):
            report.leave_out("call", Reason.NO_TOKEN_IDS)
            continue
        triplets[entry.node.id] = triplet
        matched.append(entry.node)
    for node_id, reward in match_rewards(tree, matched, reward_match, report).items():
        triplets[node_id].reward = reward
    if matched and final_reward is not None:
        last = max(reversed(matched), key=lambda node: call_order(node.span))  # of equals, the last
        triplets[last.id].reward = final_reward
    result = list(triplets.values())
    report.produce("triplets", len(result))
    return result


def _triplet(entry: MatchedCall, report: AdapterReport) -> Triplet:
    call = entry.call
    raw_prompt, prompt_row = call.structure("prompt")
    raw_completion, _ = call.structure("completion")
    response: dict[str, Any] = {
        "token_ids": call.response_ids,
        "raw_content": [] if raw_completion is None else raw_completion,
    }
    logprobs = call.logprobs
    if logprobs is not None:
        response["logprobs"] = logprobs
    prompt = {
        "token_ids": call.prompt_ids,
        "raw_content": [] if raw_prompt is None else raw_prompt,
        "image_urls": image_urls(raw_prompt, prompt_row.prompt_shape) if prompt_row else [],
    }
    for problem in call.problems:
        _logger.warning("span %s (%s): %s", entry.node.id, entry.node.span.name, problem)
        report.repair("call", problem)
    return Triplet(
        prompt=prompt,
        response=response,
        metadata={
            "request": call.request,
            "response": call.response,
            "response_id": call.response_id,
            "agent_name": entry.agent,
        },
    )
