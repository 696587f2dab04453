"""New texts of prompts, written by a model that reads what the current ones led to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from agl_algo_gepa.measurements import Measurements, Row
from agl_algo_gepa.recorder import Recorder
from agl_algo_gepa.state import Candidate, digest
from agl_core.types import PromptTemplate
from agl_prompt_search import (
    ChatReply,
    EditRules,
    MeteredModel,
    PromptFiles,
    Subject,
    WhatIf,
)

__all__ = ["Job", "Reflection"]


class Job(NamedTuple):
    """A requested edit: the prompts, the names of those to edit, and the rows to reflect on."""

    prompts: Mapping[str, str]
    components: Sequence[str]
    rows: Sequence[Row]


class Reflection:
    """Asks the reflection model for edits; answers that the journal holds are not asked again.

    For one event loop.

    Args:
        recorder: Keeps the candidates and the journal.
        measurements: Rollouts to reflect on.
        templates: The prompts that evolve; edits must keep their placeholders.
        model: Client for the reflection model; counts its calls.
        name: Name of the reflection model.
        what_if: Answers the model's questions; None: it may ask none.
        files: Prompt files.
        send_seed: Whether requests carry a seed.
    """

    def __init__(
        self,
        recorder: Recorder,
        measurements: Measurements,
        *,
        templates: Mapping[str, PromptTemplate],
        model: MeteredModel,
        name: str,
        what_if: WhatIf | None,
        files: PromptFiles,
        send_seed: bool,
    ) -> None:
        self._recorder = recorder
        self._state = recorder.state
        self._answers = recorder.state.journal.answers
        self._measurements = measurements
        self._rules = {name: EditRules.of(one) for name, one in templates.items()}
        self.model = model
        self._name = name
        self._what_if = what_if
        self._files = files
        self._send_seed = send_seed
        self._keys: dict[tuple[str, str], str] = {}
        """Names of the answers in the journal, by candidate and prompt."""

    async def load(self, candidate: Candidate, job: Job) -> None:
        """Load the rollouts that a job's prompts will show to the model, if it will be called."""
        keys = [self._name_answer(candidate, name, job) for name in job.components]
        if not all(key in self._answers for key in keys):
            parent = self._recorder.known(job.prompts)
            await self._measurements.load_experiments(parent.version, job.rows)

    def _name_answer(self, candidate: Candidate, name: str, job: Job) -> str:
        """Choose the name of an answer in the journal."""
        old = _subject(candidate, name)
        known = {key.partition("?")[0] for key in self._answers}
        key = self._recorder.entry(f"{old}/{digest(job.prompts, job.rows)}", old, known)
        self._keys[candidate.version, name] = key
        return key

    async def propose(self, candidate: Candidate, job: Job) -> None:
        """Set a candidate's prompts, or the reason of its rejection."""
        for name in job.components:
            reply = await self._ask(candidate, name, job)
            candidate.prompts[name], problem = self._rules[name].read(reply.text, job.prompts[name])
            if reply.problem:
                problem = f"no edit: {reply.problem}"
            elif reply.cut_off:
                problem = "no edit: the answer is cut off at its limit of tokens"
            if problem:
                which = f"{name}: " if len(self._rules) > 1 else ""
                candidate.rejected = which + problem
                limited = bool(reply.problem) and reply.problem == self.model.limit()
                candidate.unusable = not limited
                return

    async def _ask(self, candidate: Candidate, name: str, job: Job) -> ChatReply:
        """Return the model's answer with the new text of a prompt."""
        key = self._keys[candidate.version, name]
        if key in self._answers:
            self._recall(key)
            return self._answers[key]
        rng = Random(f"{self._state.seed}|{_subject(candidate, name)}")
        parent = self._recorder.known(job.prompts).version
        seen = self._measurements.experiments(parent, list(dict.fromkeys(job.rows)))
        messages = self._files.render(
            "reflect",
            rng.randrange(len(self._files.variants("reflect"))),
            name=name,
            prompt_template=job.prompts[name],
            others={other: text for other, text in job.prompts.items() if other != name},
            experiments=[experiment for experiment, _ in seen],
        )
        seed = rng.getrandbits(31) if self._send_seed else None
        if self._what_if is None:
            return await self._call(key, messages, seed) or self._limited()

        limited = False

        async def call(messages: Sequence[Mapping[str, Any]], number: int = 0) -> ChatReply:
            nonlocal limited
            reply = await self._call(f"{key}?{number}", messages, seed)
            limited = limited or reply is None
            return reply or self._limited()

        ids = [rollout_id for _, rollout_id in seen]
        subject = Subject(_file_name(key), parent, name, ids)
        reply = await self._what_if.converse(messages, subject, call)
        if not limited:
            self._answers[key] = reply
            await self._recorder.save()
        return reply

    async def _call(
        self, key: str, messages: Sequence[Mapping[str, Any]], seed: int | None
    ) -> ChatReply | None:
        """Return the journal's or the model's answer; None if the budget allows no call."""
        if key in self._answers:
            self.model.recall(self._name, self._answers[key])
        elif self.model.limit():
            return None
        else:
            self._recorder.end_replay()
            self._answers[key] = await self.model.ask(self._name, messages, seed)
            await self._recorder.save()
        return self._answers[key]

    def _limited(self) -> ChatReply:
        return ChatReply(problem=self.model.limit())

    def _recall(self, key: str) -> None:
        """Count the calls and the forks of an answer that an earlier process got."""
        calls = [name for name in self._answers if name.startswith(f"{key}?")] or [key]
        for name in calls:
            self.model.recall(self._name, self._answers[name])
        for name, rewards in self._state.journal.rewards.items():
            if name.startswith(f"{_file_name(key)}-what-if-"):
                self._state.count_batch(name, len(rewards))


def _subject(candidate: Candidate, name: str) -> str:
    """Return what an answer is about: a prompt of a candidate."""
    return f"{candidate.version}/{name}"


def _file_name(key: str) -> str:
    """Return the key as a part of the names of batches."""
    return key.replace("/", "-")
