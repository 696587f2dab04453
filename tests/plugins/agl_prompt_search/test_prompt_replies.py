"""The prompt in what models reply."""

from __future__ import annotations

import json

import pytest

from agl_prompt_search.replies import prompt_in, without_thoughts

PROMPT = "Answer {q} well.\nBe brief."
NAMES = frozenset({"q"})


@pytest.mark.parametrize(
    "reply",
    [
        PROMPT,
        f"  {PROMPT}\n",
        f"```\n{PROMPT}\n```",
        f"```text\n{PROMPT}\n```\n",
        f"~~~\n{PROMPT}\n~~~",
        f"````markdown\n{PROMPT}\n````",
        f"<prompt_template>\n{PROMPT}\n</prompt_template>",
        f"<new_prompt>{PROMPT}</new_prompt>",
        f"```xml\n<prompt>\n{PROMPT}\n</prompt>\n```",
        f'"{PROMPT}"',
        f"\u201c{PROMPT}\u201d",
        f"'{PROMPT}'",
        f"<think>\nThey want {{q}}. Maybe ```x```?\n</think>\n\n{PROMPT}",
        f"<thinking>Hm.</thinking><think></think>{PROMPT}",
        f"They want it brief.\n</think>\n{PROMPT}",
        f"Here is the new prompt:\n\n{PROMPT}",
        f"Sure! Here's the improved version of the prompt:\n\n```\n{PROMPT}\n```",
        f"**Revised prompt:**\n\n{PROMPT}",
        f"## Improved Prompt:\n```\n{PROMPT}\n```\n\nThis version says how long it may be.",
        f"I made it shorter.\n\n```\n{PROMPT}\n```\n\nTell me if you want more.",
        f"I made it shorter.\n<prompt_template>\n{PROMPT}\n</prompt_template>\nDone.",
        json.dumps({"prompt": PROMPT}),
        json.dumps({"critique": "long", "new_prompt": PROMPT}),
        f"```json\n{json.dumps({'prompt_template': PROMPT}, indent=2)}\n```",
        json.dumps(PROMPT),
    ],
)
def test_only_the_prompt_is_taken(reply: str) -> None:
    assert prompt_in(reply, "Answer {q}.", NAMES) == PROMPT


@pytest.mark.parametrize(
    "prompt",
    [
        "```\na\n```\nor\n```\nb\n```",
        "Use ```sh``` here for {q}",
        "<b>plain {q}</b>",
        "Answer {q} in this form:\n```json\n{{}}\n```",
        "For {q}, run\n```\nls\n```\nand\n```\npwd\n```",
        'Say "yes" or "no" to {q}',
        '"Yes" and "no" are answers to {q}, and so is "maybe"',
        "Put your reasoning for {q} between <think> and </think>.",
        "You are given a question: {q}",
        "Here {q} is the question",
        "",
    ],
)
def test_what_belongs_to_the_prompt_stays(prompt: str) -> None:
    assert prompt_in(prompt, "Answer {q}.", NAMES) == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "```\nAnswer {q}\n```",
        "Here is the question:\n{q}",
        "<prompt>\nAnswer {q}\n</prompt>",
        '"{q}" and "no"',
        '{"prompt": "{q}"}',
    ],
)
def test_what_the_present_prompt_has_stays(prompt: str) -> None:
    assert prompt_in(prompt, prompt, NAMES) == prompt


def test_nested_fences() -> None:
    prompt = "Answer {q} like\n```json\n[1]\n```\nand no other way."
    assert prompt_in(f"```\n{prompt}\n```", "Answer {q}.", NAMES) == prompt


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>endless", ""),
        ("<think>a</think>", ""),
        ("<THINK>a</THINK> b", "b"),
        ("- It is long.", "- It is long."),
        ("a </think> b", "b"),
        ("<think>a</think>Use <think>x</think>", "Use <think>x</think>"),
    ],
)
def test_thoughts_are_no_part_of_the_answer(text: str, answer: str) -> None:
    assert without_thoughts(text) == answer
