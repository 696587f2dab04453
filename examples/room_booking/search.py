"""A prompt search: an example of an algorithm that is one function.

Each round runs the best prompt so far on a few training tasks, shows its failures to a model, asks
the model for several edits, and measures all edits concurrently on the same validation tasks. In a
named run the search resumes where it stopped (docs/resume.md).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import anyio
from openai import AsyncOpenAI, OpenAIError

import agl_core as agl
from agl_algorithm_kit import run_batch
from agl_core.algorithm import (
    Algorithm,
    BatchOutcome,
    LLMProxyLike,
    RolloutOutcome,
    Run,
    add_llm,
)
from agl_core.plugins import notify
from agl_core.statistics import Estimate
from agl_prompt_search import find_mistake, placeholders, prompt_templates
from endpoint import ensure_endpoint, model_name

__all__ = ["Candidate", "prompt_search"]


@dataclass(frozen=True)
class Candidate:
    """A prompt that was measured.

    Attributes:
        version: ``v0`` is the seed.
        parent: The version it was edited from; None for the seed.
        prompt: The template.
        score: Mean reward on the validation tasks, with its 95 % interval.
    """

    version: str
    parent: str | None
    prompt: str
    score: Estimate

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Candidate:
        """Return the candidate that :func:`dataclasses.asdict` turned into a dict."""
        return cls(**{**saved, "score": Estimate(*saved["score"])})


def prompt_search(
    *,
    rounds: int = 12,
    patience: int = 3,
    candidates: int = 4,
    batch: int = 12,
    max_rollouts: int = 2000,
    seed: int = 0,
    history: list[Candidate] | None = None,
    say: Callable[[str], object] | None = None,
) -> Algorithm:
    """Make the algorithm.

    Args:
        rounds: Largest number of rounds.
        patience: Consecutive rounds without a better prompt after which the search ends.
        candidates: Edits per round.
        batch: Training tasks per round.
        max_rollouts: Budget; a round that would exceed it is not started.
        seed: Seed of the choice of training tasks.
        history: List to which every measured candidate is appended.
        say: Called with a line per round; by default prints it on standard error.
    """
    history = [] if history is None else history
    say = say or partial(print, file=sys.stderr)
    rng = random.Random(seed)

    @agl.algo
    async def search(
        store: agl.LightningStore,
        run: Run,
        adapter: agl.Adapter[Any, Any],
        llm_proxy: LLMProxyLike,
        initial_resources: agl.NamedResources,
        train_dataset: agl.Dataset[Any],
        val_dataset: agl.Dataset[Any],
    ) -> None:
        ensure_endpoint()
        name, template = next(iter(prompt_templates("search", initial_resources).items()))
        draws = [rng.sample(range(len(train_dataset)), batch) for _ in range(rounds)]
        # State that a resumed run cannot compute again: the current round, and the models' answers.
        state = run.state or {"round": 0, "idle": 0, "best": 0, "edits": None, "history": []}
        history[:] = map(Candidate.of, state["history"])

        async def save(**changes: Any) -> None:
            state.update(changes, history=[asdict(candidate) for candidate in history])
            await run.save(state, metrics={"val/reward": history[state["best"]].score.mean})

        def with_prompt(prompt: str) -> agl.NamedResources:
            others = add_llm(initial_resources, llm_proxy)
            return {**others, name: template.model_copy(update={"template": prompt})}

        async def work_on(
            prompt: str, tasks: agl.Dataset[Any], mode: agl.RolloutMode, name: str
        ) -> BatchOutcome:
            resources = with_prompt(prompt)
            about = {"mode": mode, "description": mode, "run": run, "name": name}
            return await run_batch(store, tasks, resources=resources, adapter=adapter, **about)

        async def measure(number: int, prompt: str, parent: str | None = None) -> Candidate:
            version = f"v{number}"
            outcome = await work_on(prompt, val_dataset, "val", f"{version}/val")
            return Candidate(version, parent, prompt, outcome.score())

        async def ask_for_edits(best: Candidate, number: int) -> list[str]:
            tasks = [train_dataset[i] for i in draws[number - 1]]
            seen = await work_on(best.prompt, tasks, "train", f"round-{number}/train")
            parent = template.model_copy(update={"template": best.prompt})
            asks = [_propose(model, parent, seen, i, say) for i in range(candidates)]
            known = {candidate.prompt for candidate in history}
            return sorted({edit for edit in await asyncio.gather(*asks) if edit} - known)

        async def improve(best: Candidate, number: int) -> Candidate:
            if state["edits"] is None:
                await save(edits=await ask_for_edits(best, number))
            first = len(history)
            rivals = await asyncio.gather(
                *(measure(first + i, edit, best.version) for i, edit in enumerate(state["edits"]))
            )
            history.extend(rivals)
            return max([best, *rivals], key=lambda candidate: candidate.score.mean)

        async with _serving(llm_proxy), AsyncOpenAI() as model:
            if not history:
                history.append(await measure(0, template.template))
                await save()
            best, idle = history[state["best"]], state["idle"]
            kind = "resumed" if state["round"] else "seed"
            say(f"{kind:9} {best.version:>3} scores {best.score}")
            try:
                for number in range(state["round"] + 1, rounds + 1):
                    if idle == patience:
                        say(f"stopping: nothing better in {patience} rounds")
                        break
                    used = (number - 1) * batch + len(history) * len(val_dataset)
                    if used + batch + candidates * len(val_dataset) > max_rollouts:
                        say(f"stopping: another round may exceed {max_rollouts} rollouts")
                        break
                    parent, best = best, await improve(best, number)
                    metrics = {"val/reward": best.score.mean}
                    notify("algorithm_step", algorithm=__name__, step=number - 1, metrics=metrics)
                    news = "as before" if best is parent else f"edited from {parent.version}"
                    say(f"round {number:3d} {best.version:>3} scores {best.score}, {news}")
                    idle = idle + 1 if best is parent else 0
                    await save(round=number, idle=idle, best=history.index(best), edits=None)
            finally:  # also on Ctrl+C, to keep the best prompt so far
                with anyio.CancelScope(shield=True):
                    await run.put_resources("best", with_prompt(best.prompt))

    return search


@asynccontextmanager
async def _serving(proxy: LLMProxyLike) -> AsyncGenerator[None]:
    if proxy.is_running():
        yield
        return
    await proxy.start()
    try:
        yield
    finally:
        await proxy.stop()


# -- asking for edits ------------------------------------------------------------------------------

_EDITOR = """\
You improve the instructions of an AI agent. You are shown its present instructions, and tasks at
which it failed with the feedback it got. Find one aspect that the instructions lack or get wrong,
and mend it. Keep everything in curly braces exactly as it is. Return only the complete new
instructions, without any remark."""

_MAX_FAILURES = 4


async def _propose(
    model: AsyncOpenAI,
    prompt: agl.PromptTemplate,
    seen: Sequence[RolloutOutcome],
    number: int,
    say: Callable[[str], object],
) -> str | None:
    """Ask for one edit; return None if the reply holds no usable prompt."""
    failures = [_transcript(outcome) for outcome in seen if not outcome.reward]
    # Concurrent requests start with different failures, so that their edits differ.
    chosen = (failures[number:] + failures[:number])[:_MAX_FAILURES]
    question = f"<instructions>\n{prompt.template}\n</instructions>\n\n" + "\n\n".join(chosen)
    messages: Any = [
        {"role": "system", "content": _EDITOR},
        {"role": "user", "content": question},
    ]
    try:
        reply = await model.chat.completions.create(model=model_name(), messages=messages)
    except OpenAIError as error:
        say(f"an edit is missing, the model answered: {error}")
        return None
    edited = (reply.choices[0].message.content or "").strip()
    mistake = find_mistake(prompt.model_copy(update={"template": edited}), placeholders(prompt))
    if mistake:
        say(f"an edit is left out: {mistake}")
        return None
    return edited


def _transcript(outcome: RolloutOutcome) -> str:
    """Return a rollout as text: its conversation, from the adapter, and the user's feedback."""
    conversation = outcome.adapted[-1]["messages"] if outcome.adapted else []
    said = [
        (message["role"], message["content"])
        for message in conversation
        if message["role"] != "system" and message.get("content")
    ]
    feedback = [("feedback", agl.get_message_value(span)) for span in outcome.spans]
    return "\n".join(f"{who}: {text}" for who, text in said + feedback if text)
