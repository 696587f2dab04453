"""Batched sampling from a causal language model, with a key-value cache in blocks.

A sequence joins the batch when it arrives and leaves it when it ends (continuous batching: Yu et
al., "Orca", OSDI 2022). A step of the batch is one forward pass: a token of each running sequence,
and beside them a part of the prompts that wait, which are run in the order of their arrival. Equal
prompts that wait together are run once.

One thread owns the model. Weights change only while the batch is empty; otherwise an answer would
mix tokens of two models.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from agl_server_hf.budget import fit_cache
from agl_server_hf.cache import BLOCK, Step, Table
from agl_server_hf.generation import Generation, Sampling, Token
from agl_server_hf.sampling import Sampler

__all__ = ["Engine", "Generation", "Sampling", "Token"]

logger = logging.getLogger(__name__)

PROMPT_TOKENS: Final = 1024
"""Tokens of prompts per step: enough to use the device, and few enough that answers go on."""


@dataclass(eq=False, slots=True)
class _Sequence:
    """A sequence in the batch, from its prompt on.

    Attributes:
        generation: What is sampled.
        ids: The prompt and the tokens sampled so far.
        table: Its blocks of the cache; None until its prompt is begun.
        twins: Sequences with the same prompt, which take over what the model says of it.
    """

    generation: Generation
    ids: list[int]
    table: Table | None = None
    twins: list[_Sequence] = field(default_factory=list["_Sequence"])

    @property
    def stored(self) -> Table:
        assert self.table is not None
        return self.table


class Engine:
    """Samples for many callers at a time. Its methods may be called from any thread.

    Args:
        model: A causal language model in evaluation mode; the engine takes ownership.
        eos_ids: Tokens that end a sequence.
        max_batch: Largest number of sequences in the batch; further ones wait.
        seed: Seed for the sequences that bring none.
        max_length: Largest number of tokens of a sequence; None: the model's.
        cache_tokens: Number of tokens whose keys and values there is room for, in all sequences
            together; see :func:`~agl_server_hf.budget.fit_cache` for None. If it does not suffice
            for all sequences, the last ones wait.
        after_step: Called in the engine's thread after each step, if something was emitted.
        threads: Number of PyTorch's threads of a step on a CPU; None: its default. The thread that
            makes the engine should have one, see :mod:`agl_server_hf.threads`.

    Raises:
        LLMServerError: The model's attention cannot be used, or there is no memory for the cache.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_ids: Sequence[int],
        max_batch: int = 64,
        seed: int | None = None,
        max_length: int | None = None,
        cache_tokens: int | None = None,
        after_step: Callable[[], None] | None = None,
        threads: int | None = None,
    ) -> None:
        self._model = model
        self._threads = threads
        self._cache = fit_cache(
            model, max_batch=max_batch, max_length=max_length, tokens=cache_tokens
        )
        self.after_step = after_step
        self._eos = frozenset(eos_ids)
        self._max_batch = max_batch
        self._generator = torch.Generator(device=model.device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._orders: deque[tuple[Callable[[Any], Any], Future[None]]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # The batch: sequences whose prompt is not finished, and running ones, whose next logits
        # [B, V] are known. Sampler and step are those of the same sequences in the last step.
        self._prompts: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._logits: Any = None
        self._sampler: Sampler | None = None
        self._last: Step | None = None

    @property
    def cache_tokens(self) -> int:
        """Number of tokens that the cache has room for: the most that a sequence can have."""
        return self._cache.tokens

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; unfinished sequences fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def submit(self, *generations: Generation) -> None:
        """Queue sequences; their tokens go to ``generation.emit``."""
        with self._changed:
            self._waiting.extend(generations)
            self._changed.notify()

    def cancel(self, generation: Generation) -> None:
        """Stop a sequence; it emits no further token."""
        generation.cancelled = True

    def change(self, order: Callable[[Any], Any]) -> Future[None]:
        """Change the model when the batch is empty; sequences that arrive meanwhile wait.

        Args:
            order: Called with the model in the engine's thread; returns the model to use from then
                on. If it raises, the future fails and the model stays.
        """
        future: Future[None] = Future()
        with self._changed:
            self._orders.append((order, future))
            self._changed.notify()
        return future

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.no_grad():
            while True:
                busy = bool(self._running or self._prompts)
                with self._changed:
                    if not busy:
                        self._changed.wait_for(
                            lambda: self._closing or self._orders or self._waiting
                        )
                    if self._closing:
                        break
                    order = self._orders.popleft() if self._orders and not busy else None
                    if not self._orders and order is None:
                        self._take()
                if order is not None:
                    self._apply(*order)
                    continue
                try:
                    self._step()
                except Exception as error:  # such as out of memory: only this batch fails
                    logger.exception("a batch of %d sequences failed", self._size())
                    self._fail(error)
            self._fail(RuntimeError("the server is stopping"), self._waiting)

    def _apply(self, order: Callable[[Any], Any], future: Future[None]) -> None:
        self._cache.forget()
        try:
            self._model = order(self._model)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def _fail(self, error: Exception, more: Iterable[Generation] = ()) -> None:
        batch = self._running + [one for head in self._prompts for one in (head, *head.twins)]
        self._running, self._logits, self._sampler, self._last = [], None, None, None
        self._prompts.clear()
        self._cache.forget()
        for sequence in batch:
            if sequence.table is not None:
                self._cache.close(sequence.table)
        self._emit((generation, error) for generation in (*(s.generation for s in batch), *more))

    def _emit(self, events: Iterable[tuple[Generation, Token | Exception]]) -> None:
        some = False
        for generation, event in events:
            generation.emit(event)
            some = True
        if some and self.after_step is not None:
            self.after_step()

    # -- the batch -------------------------------------------------------------------------------

    def _size(self) -> int:
        return len(self._running) + sum(1 + len(head.twins) for head in self._prompts)

    def _take(self) -> None:
        """Move sequences that wait to the batch, while there is room."""
        room = self._max_batch - self._size() if self._waiting else 0
        heads = {
            (tuple(one.generation.prompt), one.generation.adapter): one
            for one in (self._prompts if room else ())
            if not one.generation.token_ids
        }
        while self._waiting and room > 0:
            generation = self._waiting.popleft()
            if generation.cancelled:
                continue
            if generation.sampling.seed is not None:
                generation.generator = torch.Generator(device=self._generator.device)
                try:
                    generation.generator.manual_seed(generation.sampling.seed)
                except (RuntimeError, ValueError) as error:  # the seed is too large
                    self._emit([(generation, error)])
                    continue
            sequence = _Sequence(generation, list(generation.prompt))
            head = heads.setdefault((tuple(sequence.ids), generation.adapter), sequence)
            (self._prompts if head is sequence else head.twins).append(sequence)
            room -= 1

    def _step(self) -> None:
        """Sample a token of each running sequence, then run the model on those that go on."""
        tokens = self._sample() if self._running else None
        if not self._make_room():
            tokens = None
        chunks, finished = self._schedule()
        if not self._running and not chunks:
            return
        tables = [sequence.stored for sequence in self._running]
        if self._last is not None and not chunks and all(table.length % BLOCK for table in tables):
            self._last.advance()
        else:
            self._last = self._cache.step(tables, [(s.stored, count) for s, count in chunks])
        if tokens is None:
            tokens = self._tensor([sequence.ids[-1] for sequence in self._running])
        self._logits = self._forward(tokens, chunks)
        for table in tables:
            table.length += 1
        for sequence, count in chunks:
            sequence.stored.length += count
        if chunks:
            self._last = None
        if finished:
            self._join(finished)

    def _sample(self) -> Tensor | None:
        """Sample, emit, and drop what has ended; return the tokens if no sequence was dropped."""
        if self._sampler is None:
            generations = [sequence.generation for sequence in self._running]
            self._sampler = Sampler(
                [generation.sampling for generation in generations],
                [generation.generator for generation in generations],
                self._generator,
            )
        tokens, ids, logprobs, top = self._sampler(self._logits)
        staying: list[_Sequence] = []
        events: list[tuple[Generation, Token | Exception]] = []
        for row, sequence in enumerate(self._running):
            generation = sequence.generation
            if not generation.cancelled:
                generation.token_ids.append(ids[row])
                count = generation.sampling.top_logprobs
                best = top[row][:count] if count else ()
                reason = self._finish_reason(generation)
                token = Token(ids[row], logprobs[row], best, reason)
                generation.tokens.append(token)
                if generation.stream or reason is not None:
                    events.append((generation, token))
                if reason is None:
                    sequence.ids.append(ids[row])
                    staying.append(sequence)
                    continue
            self._leave(sequence)
        self._emit(events)
        if len(staying) == len(self._running):
            return tokens
        self._running, self._sampler, self._last = staying, None, None
        return None

    def _leave(self, sequence: _Sequence) -> None:
        """Give back the blocks; a later prompt may begin with what is in them."""
        table = sequence.stored
        self._cache.name(table, sequence.ids[: table.length])
        self._cache.close(table)

    def _finish_reason(self, generation: Generation) -> str | None:
        sampling, last = generation.sampling, generation.token_ids[-1]
        if last in sampling.stop_ids or (last in self._eos and not sampling.ignore_eos):
            return "stop"
        if generation.is_stop is not None and generation.is_stop(generation.token_ids):
            return "stop"
        return "length" if len(generation.token_ids) >= sampling.max_tokens else None

    def _make_room(self) -> bool:
        """Take a block for each running sequence that needs one; return False if some must wait.

        If the cache is full, the sequences that came last give their blocks back, those that wait
        before those that run. They are run again, from the prompt on, when there is room.
        """
        whole = True
        ready = 0
        while ready < len(self._running):
            table = self._running[ready].stored
            if self._cache.grow(table, table.length + 1):
                ready += 1
                continue
            if self._reclaim():
                continue
            last = self._running.pop()
            self._leave(last)
            self._sampler = self._last = None
            whole = False
            if not self._running and last.stored.length >= self._cache.tokens:
                self._emit([(last.generation, self._too_long())])
                continue
            last.table = None
            self._prompts.appendleft(last)
        return whole

    def _reclaim(self, first: int = 0) -> bool:
        """Take the blocks of the last prompt that has some; return False if there is none.

        Args:
            first: Number of the first prompt that may lose its blocks.
        """
        for number in reversed(range(first, len(self._prompts))):
            head = self._prompts[number]
            if head.table is not None:
                self._cache.close(head.table)
                head.table = None
                return True
        return False

    def _too_long(self) -> Exception:
        return RuntimeError(
            f"the sequence does not fit into the key-value cache of {self._cache.tokens} tokens"
        )

    def _schedule(self) -> tuple[list[tuple[_Sequence, int]], list[_Sequence]]:
        """Choose the parts of prompts of this step.

        Returns:
            Sequences and their number of tokens; the sequences whose prompt ends with it.
        """
        chunks: list[tuple[_Sequence, int]] = []
        finished: list[_Sequence] = []
        room = PROMPT_TOKENS
        while room and len(finished) < len(self._prompts):
            head = self._prompts[len(finished)]
            if head.generation.cancelled:
                self._drop(len(finished))
                continue
            if head.table is None:
                head.table = self._cache.open(head.ids, head.generation.adapter)
            table = head.table
            end = min(table.length + room, len(head.ids))
            if not self._cache.grow(table, end):
                if self._running or chunks:
                    break  # until others have ended
                if self._reclaim(1):
                    continue
                self._drop(len(finished))
                self._emit([(head.generation, self._too_long())])
                continue
            # From here on a later prompt finds these blocks: it is run after this one.
            self._cache.name(table, head.ids[:end])
            chunks.append((head, end - table.length))
            room -= end - table.length
            if end == len(head.ids):
                finished.append(head)
        return chunks, finished

    def _drop(self, number: int) -> None:
        """Give up a prompt; its twins take its place."""
        head = self._prompts[number]
        del self._prompts[number]
        if head.table is not None:
            self._cache.close(head.table)
        self._queue(head.twins, number)

    def _queue(self, twins: Sequence[_Sequence], number: int = 0) -> None:
        """Put sequences of one prompt in the queue; the first takes the others along."""
        if twins:
            first, *first.twins = twins
            self._prompts.insert(number, first)

    def _join(self, finished: Sequence[_Sequence]) -> None:
        """Let sequences with a finished prompt run, and their twins with them."""
        rows = list(range(len(self._running)))
        for row, head in enumerate(finished, len(rows)):
            self._prompts.remove(head)
            twins, head.twins = head.twins, []
            joining = [head]
            for number, twin in enumerate(twins):
                twin.table = self._cache.fork(head.stored)
                if twin.table is None:
                    self._queue(twins[number:])
                    break
                joining.append(twin)
            self._running += joining
            rows += [row] * len(joining)
        if len(rows) != len(self._logits):
            self._logits = self._logits[self._tensor(rows)]
        self._sampler = self._last = None

    def _forward(
        self,
        tokens: Tensor,
        chunks: Sequence[tuple[_Sequence, int]],
    ) -> Tensor:
        """Run the model; return the next logits of running and of finished sequences.

        Args:
            tokens: Last token of each running sequence, int64 ``[B]``.
            chunks: Sequences and how many tokens of their prompts to run.

        Returns:
            float32 ``[B + F, V]``, if ``F`` prompts are finished.
        """
        assert self._last is not None
        rows = list(range(len(tokens)))
        if chunks:
            end = len(tokens)
            prompt: list[int] = []
            for sequence, count in chunks:
                done = sequence.stored.length
                prompt += sequence.ids[done : done + count]
                end += count
                if done + count == len(sequence.ids):
                    rows.append(end - 1)
            tokens = torch.cat((tokens, self._tensor(prompt)))
        names = [sequence.generation.adapter for sequence in self._running]
        names += [s.generation.adapter for s, count in chunks for _ in range(count)]
        return self._last.run(self._model, tokens, names, rows)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._generator.device)
