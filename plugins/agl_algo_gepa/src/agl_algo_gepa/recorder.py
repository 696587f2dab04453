"""The candidates of a run: added, found, saved and reported in one place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import anyio

from agl_algo_gepa.state import Candidate, GEPAState
from agl_core.algorithm import Run
from agl_prompt_search import Reporter

__all__ = ["Recorder"]


class Recorder:
    """Keeps the state of a run; saves and reports nothing while a resumed run uses its journal.

    For one event loop.

    Args:
        state: State to start from: a new one, or one with the journal of a resumed run.
        run: Saves the state; a run without a name saves nothing.
        reporter: Receives every step.
        pay: Called when the journal is used up; counts the failed calls that are made again.
    """

    def __init__(
        self,
        state: GEPAState,
        run: Run,
        reporter: Reporter,
        pay: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = state
        self.run = run
        self.reporter = reporter
        self._pay = pay
        self._replays = bool(state.journal.rewards)
        self._saving = anyio.Lock()

    def new_candidate(self, prompts: Mapping[str, str]) -> Candidate:
        """Add a candidate of the current round to the history."""
        candidate = Candidate(
            version=f"v{len(self.state.history)}",
            round=self.state.rounds + 1,
            prompts=dict(prompts),
        )
        self.state.add(candidate)
        return candidate

    def known(self, prompts: Mapping[str, str]) -> Candidate:
        """Return the first candidate with these prompts."""
        found = self.state.with_prompts(prompts)
        assert found is not None, "the engine uses only prompts that it was given"
        return found

    def entry(self, name: str, old_name: str, known: Collection[str]) -> str:
        """Return the name of an entry of the journal.

        Args:
            name: Its name, with the digest of what it is about.
            old_name: Its name in journals of older versions, which have no digests. They are used
                as long as the replay makes the same decisions.
            known: Names in the journal.
        """
        return old_name if self._replays and old_name in known else name

    def end_replay(self) -> None:
        """Note that the journal is used up: from here on results are new."""
        if self._replays:
            self._replays = False
            # Not before: budgets must not stop the replay earlier than they stopped the search.
            for name, rewards in self.state.journal.rewards.items():
                self.state.count_batch(name, len(rewards))
            self._pay()
            self.reporter.resumed(self.state)

    def tell(self, tell: Callable[..., None], *about: object) -> None:
        """Report something, unless an earlier process did."""
        if not self._replays:
            tell(*about)

    async def save(self) -> None:
        """Save the state."""
        # During the replay nothing is saved: the saved state already holds all of it.
        if self.run.name and not self._replays:
            async with self._saving:  # saves must reach a remote store in order
                await self.run.save(self.state.model_dump(mode="json"))
