"""The engine, without a server around it: batches, failures, cancellation, and text parsing."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from agl_server_hf.engine import Engine, Generation, Sampling, Token
from agl_server_hf.text import Detokenizer, GrowingText, parse_answer, render_chat

SECONDS = 60


class Submitted:
    """A sequence, and what the engine emitted for it."""

    def __init__(self, engine: Engine, prompt: list[int], **sampling: Any) -> None:
        self.emitted: queue.Queue[Token | Exception] = queue.Queue()
        self.generation = Generation(prompt, Sampling(**sampling), self.emitted.put)
        engine.submit(self.generation)

    def all(self) -> list[int]:
        """Wait for the end of the sequence; return its tokens."""
        ids: list[int] = []
        while True:
            token = self.emitted.get(timeout=SECONDS)
            if isinstance(token, Exception):
                raise token
            ids.append(token.id)
            if token.finish_reason is not None:
                return ids


@pytest.fixture
def model(models: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(models / "random", dtype=torch.float32).eval()


@pytest.fixture
def engine(model: Any) -> Iterator[Engine]:
    engine = Engine(model, eos_ids=[], max_batch=4, seed=0)
    engine.start()
    yield engine
    engine.close()


def test_a_failing_batch_leaves_later_sequences_unharmed(model: Any, engine: Engine):
    forward, broken = model.forward, [True]

    def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        if broken:
            broken.pop()
            raise torch.OutOfMemoryError("no memory left")
        return forward(*args, **kwargs)

    model.forward = out_of_memory
    with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
        Submitted(engine, [1, 2, 3], max_tokens=4).all()
    assert len(Submitted(engine, [1, 2, 3], max_tokens=4).all()) == 4


def test_a_seed_or_a_number_of_tokens_that_is_too_large_fails_no_other_sequence(engine: Engine):
    with pytest.raises((RuntimeError, ValueError)):
        Submitted(engine, [1, 2, 3], max_tokens=4, seed=2**70).all()
    assert len(Submitted(engine, [1, 2, 3], max_tokens=4, seed=2**63 + 255).all()) == 4
    assert len(Submitted(engine, [1, 2, 3], max_tokens=4, top_k=2**70).all()) == 4


def test_sequences_beyond_the_batch_size_wait(engine: Engine):
    alone = Submitted(engine, [7, 8], max_tokens=6, temperature=0).all()
    submitted = [Submitted(engine, [7, 8], max_tokens=6, temperature=0) for _ in range(11)]
    others = [Submitted(engine, [i] * i, max_tokens=i) for i in range(1, 9)]
    assert all(one.all() == alone for one in submitted)
    assert [len(one.all()) for one in others] == list(range(1, 9))


def test_a_cancelled_sequence_makes_room(engine: Engine):
    endless = [Submitted(engine, [1], max_tokens=10**9) for _ in range(4)]
    for one in endless:
        one.emitted.get(timeout=SECONDS)
    waiting = Submitted(engine, [2], max_tokens=3)
    for one in endless:
        engine.cancel(one.generation)
    assert len(waiting.all()) == 3


def test_a_weight_change_waits_for_the_batch_and_holds_later_sequences(model: Any, engine: Engine):
    running = Submitted(engine, [1], max_tokens=200)
    running.emitted.get(timeout=SECONDS)
    seen: list[int] = []

    def change(same: Any) -> Any:
        seen.append(len(running.generation.token_ids))
        return same

    changed = engine.change(change)
    late = Submitted(engine, [1], max_tokens=2)
    running.all()
    changed.result(timeout=SECONDS)
    assert seen == [200]
    assert len(late.all()) == 2

    def refuse(same: Any) -> Any:
        raise ValueError("these do not fit")

    with pytest.raises(ValueError, match="do not fit"):
        engine.change(refuse).result(timeout=SECONDS)
    assert len(Submitted(engine, [1], max_tokens=2).all()) == 2


def test_closing_the_engine_fails_unfinished_sequences(model: Any):
    engine = Engine(model, eos_ids=[], max_batch=1)
    engine.start()
    submitted = [Submitted(engine, [1], max_tokens=10**9) for _ in range(3)]
    submitted[0].emitted.get(timeout=SECONDS)
    engine.close()
    for one in submitted:
        with pytest.raises(RuntimeError, match="the server is stopping"):
            one.all()


# -- text ------------------------------------------------------------------------------------------


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello.", "Hello.", []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', None, [("f", '{"a": 1}')]),
        (
            'Well. <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
            "Well. ",
            [("f", "{}")],
        ),
        (CALL, None, [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ..., []),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', ..., []),
        ("<tool_call>[]</tool_call>", ..., []),
        ("<tool_call>{</tool_call>", ..., []),
        (
            f"{CALL}</tool_call>{CALL.replace('1', chr(34) + 'ö' + chr(34))}</tool_call>",
            None,
            [("f", '{"a": 1}'), ("f", '{"a": "ö"}')],
        ),
    ],
)
def test_tool_calls_are_found_or_left_as_text(text: str, content: Any, calls: list[Any]):
    answer = parse_answer(text, tools=True)
    assert answer.content == (text if content is ... else content)
    assert [(call["name"], call["arguments"]) for call in answer.tool_calls] == calls
    assert parse_answer(text, tools=False).content == text


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("hold", [None, "<tool_call>"])
def test_a_stream_emits_whole_characters_and_no_part_of_a_stop_text(hold: str | None):
    text = "Grüße! <tool_ and more STOPPED"
    ids = list(text.encode())
    stream = Detokenizer(Bytes(), ["STOP"], hold)
    parts: list[str] = []
    for end in range(1, len(ids) + 1):
        parts.append(stream.advance(ids[:end]))
        assert "\N{REPLACEMENT CHARACTER}" not in parts[-1]
        if stream.is_stop(ids[:end]):
            break
    whole = stream.text(ids)
    assert whole == "Grüße! <tool_ and more "
    assert "".join(parts) + whole[stream.given :] == whole
    assert len([part for part in parts if part]) > 15


def byte_fallback() -> Any:
    """A tokenizer as Llama 2 has it: it drops the first space; a part of a character is a token."""
    words = ["\u2581the", "\u2581", "a", ".", "\u2581n", "'t", "\n"]
    tokens = ["<unk>", "</s>", *words, *(f"<0x{byte:02X}>" for byte in range(256))]
    bare = Tokenizer(
        models.BPE({token: n for n, token in enumerate(tokens)}, [], byte_fallback=True)
    )
    bare.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="</s>")


@pytest.mark.parametrize("name", ["bytes", "byte fallback"])
def test_the_text_of_growing_tokens_is_that_of_all_tokens(taught: Path, name: str):
    chance = random.Random(5)
    if name == "bytes":
        tokenizer: Any = AutoTokenizer.from_pretrained(taught)
        some = [tokenizer.encode(text) for text in ("Grüße! ", "日本", "🙂", " the\n\n", "a.")]
        some.append([tokenizer.eos_token_id])
    else:
        tokenizer = byte_fallback()
        some = [
            [2, 3, 4, 5],
            [6, 7],
            [1],
            [3],
            [8],
            *([9 + b for b in c.encode()] for c in "é🙂\n"),
        ]
    for odd in (0.0, 0.01):  # tokens that are no character
        ids = [token for _ in range(400) for token in chance.choice(some)]
        ids = [chance.randrange(len(tokenizer)) if chance.random() < odd else i for i in ids]
        growing = GrowingText(tokenizer)
        for end in range(1, len(ids) + 1):
            whole = tokenizer.decode(ids[:end], skip_special_tokens=True)
            assert growing.of(ids[:end]) == whole


def test_a_token_costs_the_same_in_a_long_answer():
    decoded: list[int] = []

    class Counted(Bytes):
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            decoded.append(len(ids))
            return super().decode(ids, skip_special_tokens)

    ids = list(("Grüße! 🙂 and more. " * 100).encode())
    stream = Detokenizer(Counted(), ["STOP"])
    parts: list[str] = []
    for end in range(1, len(ids) + 1):
        parts.append(stream.advance(ids[:end]))
        assert not stream.is_stop(ids[:end])
    assert "".join(parts) == bytes(ids).decode()[: stream.given]
    assert max(decoded) < 100
    assert sum(decoded) < 100 * len(ids)


def test_messages_that_cannot_be_rendered_are_refused(taught: Path):
    tokenizer = AutoTokenizer.from_pretrained(taught)
    call = {"function": {"name": "f", "arguments": "{"}}
    with pytest.raises(ValueError, match="not valid JSON"):
        render_chat(tokenizer, [{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(ValueError, match="cannot render"):
        render_chat(tokenizer, [{"role": "assistant", "tool_calls": [{"function": 3}]}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plain = render_chat(tokenizer, [{"role": "user", "content": "ab"}])
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == plain
