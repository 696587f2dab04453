"""Questions of a critic: what if the prompt had said something else from a turn on?

Instead of its answer, the model that criticises a prompt may send a changed prompt to try::

    <what_if run="2" turn="3">The whole changed prompt</what_if>

Run 2 is repeated from its recording up to turn 3, and continued there with the changed prompt and
with its own. The model gets both rewards, and may go on.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from statistics import fmean
from typing import Any, Final

from agl_algorithm_kit import run_requests
from agl_core.algorithm import BatchOutcome, Run
from agl_core.errors import NotFoundError, SpansEvictedError
from agl_core.plugins import missing_package
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate
from agl_prompt_search.chat import ChatReply
from agl_prompt_search.search import Snapshots
from agl_prompt_search.templates import EditRules

__all__ = ["Subject", "WhatIf"]

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]

_QUESTION: Final = re.compile(
    r'<what_if run="(?P<run>\d+)" turn="(?P<turn>\d+)">\s*(?P<prompt>.*?)\s*</what_if>', re.DOTALL
)
_INVITATION: Final = """

You may first try up to {questions} changes of the prompt. To try one, answer with nothing but

<what_if run="1" turn="2">
the complete changed prompt
</what_if>

Then the run with this number is repeated up to the turn, its answer of the model with that number,
and continued from there with the changed prompt, and with the present one. You get the rewards of
both. Keep all that stands in curly braces. Choose a run with a low reward, and the turn in which it
went wrong."""


@dataclass(frozen=True)
class Subject:
    """The runs and the prompt that a model asks about.

    Attributes:
        name: Name of the conversation, unique in the search.
        version: Version whose runs the model sees.
        prompt: Name of the prompt that it may change.
        rollout_ids: The runs, in the order of their numbers.
    """

    name: str
    version: str
    prompt: str
    rollout_ids: Sequence[str]


class WhatIf:
    """Answers the questions of a model by forks of the rollouts that it sees.

    Args:
        algorithm: Name of the algorithm, for errors.
        store: Store of the rollouts.
        run: Run that the forks belong to.
        snapshots: Resources of the candidates.
        questions: Limit of questions in one conversation.
        samples: Forks with each of the two prompts for a question.
        timeout: Seconds for the forks of a question.
        count: Called with the name and the rewards of the forks of each question.

    Raises:
        MissingDependencyError: agl-replay is not installed.
    """

    def __init__(
        self,
        algorithm: str,
        *,
        store: LightningStore,
        run: Run,
        snapshots: Snapshots,
        questions: int,
        samples: int,
        timeout: float,
        count: Callable[[str, Sequence[float]], None],
    ) -> None:
        if find_spec("agl_replay") is None:
            raise missing_package(f"what_if of {algorithm}", "agl-replay")
        self._store = store
        self._run = run
        self._snapshots = snapshots
        self._questions = questions
        self._samples = samples
        self._timeout = timeout
        self._count = count

    async def converse(
        self,
        messages: Messages,
        subject: Subject,
        ask: Callable[[Messages, int], Awaitable[ChatReply]],
    ) -> ChatReply:
        """Return the model's answer after its questions.

        Args:
            messages: Messages to the model; the last message is the user's.
            subject: The runs and the prompt of its questions.
            ask: Calls the model with messages and the number of the call, from 0.
        """
        *first, last = messages
        invitation = _INVITATION.format(questions=self._questions)
        said: list[Mapping[str, Any]] = [*first, {**last, "content": last["content"] + invitation}]
        for number in range(self._questions):
            reply = await ask(said, number)
            question = _QUESTION.search(reply.text)
            if question is None:
                return reply
            result = await self._try(question, subject, number)
            left = self._questions - number - 1
            more = f"You may try {left} more changes." if left else "Now give your answer."
            said += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": f"{result}\n{more}"},
            ]
        reply = await ask(said, self._questions)
        if _QUESTION.search(reply.text):
            return replace(reply, text="", problem="another question instead of an answer")
        return reply

    async def _try(self, question: re.Match[str], subject: Subject, number: int) -> str:
        """Return what the model is told."""
        from agl_replay import NotReplayableError, fork_requests, read_recording

        run_number, turn, text = int(question["run"]), int(question["turn"]), question["prompt"]
        resources = self._snapshots.resources_of(subject.version)
        own = resources[subject.prompt]
        assert isinstance(own, PromptTemplate), "only prompt templates are searched"
        changed = own.model_copy(update={"template": text})
        if mistake := EditRules.of(own).mistake_in(text):
            return f"Not tried: {mistake}."
        if not 1 <= run_number <= len(subject.rollout_ids):
            return f"Not tried: the runs are 1 to {len(subject.rollout_ids)}."
        try:
            recording = await read_recording(self._store, subject.rollout_ids[run_number - 1])
        except NotReplayableError as error:
            return f"Not tried: {error}."
        except (NotFoundError, SpansEvictedError) as error:
            # Cancelled in the queue, so without an attempt; or dropped from the store since.
            logger.warning("%s: %s", subject.name, error)
            return f"Not tried: the recording of run {run_number} is not there."
        if not 1 <= turn <= len(recording.calls):
            return f"Not tried: run {run_number} has the turns 1 to {len(recording.calls)}."
        # A model without a seed may ask something else in a resumed run.
        digest = hashlib.sha256(question[0].encode()).hexdigest()[:8]
        name = f"{subject.name}-what-if-{number}-{digest}"
        tried = await self._run.put_resources(
            name, {**resources, subject.prompt: changed}, latest=False
        )
        requests = [
            request
            for resources_id in (recording.rollout.resources_id, tried)
            for request in fork_requests(
                recording.rollout,
                recording.attempt.attempt_id,
                at=turn - 1,
                samples=self._samples,
                resources_id=resources_id,
                on_divergence="ignore",  # the changed prompt stands in the repeated calls, too
            )
        ]
        outcomes = await run_requests(
            self._store,
            requests,
            timeout=self._timeout,
            description=name,
            run=self._run,
            name=name,
        )
        before, after = self._scored(outcomes)
        self._count(name, [*before, *after])
        if not before or not after:
            which = "changed" if before else "present"
            return f"Not tried: no continuation with the {which} prompt could be scored."
        return (
            f"Run {run_number} continued from turn {turn}, {self._samples} times each: mean reward "
            f"{fmean(before):.2f} with the present prompt, {fmean(after):.2f} with the changed one."
        )

    def _scored(self, outcomes: BatchOutcome) -> tuple[list[float], list[float]]:
        """Return the rewards of the forks with the present prompt, and with the changed one.

        Forks that the infrastructure failed have none. A failure of the agent counts the same in
        both.
        """
        scale = outcomes.scale

        def rewards(start: int) -> list[float]:
            forks = outcomes[start : start + self._samples]
            counted = scale.counted(one.earned for one in forks if one.infrastructure is None)
            # not finite only if no fork finished
            return [reward if math.isfinite(reward) else 0.0 for reward in counted]

        return rewards(0), rewards(self._samples)
