"""The prompt in what models reply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

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
        f"Here are the revised instructions:\n\n{PROMPT}",
        f"Below is my rewrite, which is shorter:\n\n{PROMPT}",
        f"Here you go:\n{PROMPT}",
        f"Revised:\n{PROMPT}",
        f"Sure! Here's the improved version of the prompt:\n\n```\n{PROMPT}\n```",
        f"**Revised prompt:**\n\n{PROMPT}",
        f"## Improved Prompt:\n```\n{PROMPT}\n```\n\nThis version says how long it may be.",
        f"I made it shorter.\n\n```\n{PROMPT}\n```\n\nTell me if you want more.",
        f"I made it shorter.\n<prompt_template>\n{PROMPT}\n</prompt_template>\nDone.",
        json.dumps({"prompt": PROMPT}),
        json.dumps({"critique": "long", "new_prompt": PROMPT}),
        f"```json\n{json.dumps({'prompt_template': PROMPT}, indent=2)}\n```",
        json.dumps(PROMPT),
        json.dumps({"reasoning": "x", "new_instructions": PROMPT}),
        f"Here is the improved prompt:\n\n---\n\n{PROMPT}\n\n---\n\nThis version is clearer.",
        f"***\n{PROMPT}\n***",
        "Improved prompt:\n\n" + "\n".join(f"> {line}" for line in PROMPT.splitlines()),
        f"{PROMPT}\n\nLet me know if you need any further changes!",
        f"{PROMPT}\n\n**Key changes:**\n- It is brief.",
        f"{PROMPT}\n\nThis version keeps the placeholder and says how long it may be.",
        f"<|channel|>analysis<|message|>Keep {{q}}.<|end|><|channel|>final<|message|>{PROMPT}",
        f"[THINK]Keep {{q}}.[/THINK]{PROMPT}",
        f"\u25c1think\u25b7Keep {{q}}.\u25c1/think\u25b7{PROMPT}",
        f"<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{PROMPT}<|END_RESPONSE|>",
        f"<seed:think>Hm.</seed:think>{PROMPT}",
        f"<analysis>It is too long.</analysis>\n{PROMPT}",
        f"Okay. <think>Keep {{q}}.</think>{PROMPT}",
        f"<answer>{PROMPT}</answer>",
        f"<output>\n{PROMPT}\n</output>",
        f"Prompt: {PROMPT}",
        f"**New prompt:** {PROMPT}",
        f"## Improved Prompt\n\n{PROMPT}",
        f"prompt: |\n  {PROMPT.replace(chr(10), chr(10) + '  ')}",
        f"The agent is too chatty.\n\nImproved prompt:\n{PROMPT}",
        f"```\nAnswer {{q}}.\n```\n\nbecomes\n\n```\n{PROMPT}\n```",
        f"```\n{PROMPT}",
        f"{PROMPT}</s>",
        f"{PROMPT}<|im_end|>",
        f"\ufeff{PROMPT}",
        f"assistant\n{PROMPT}",
        f"Hier ist der verbesserte Prompt:\n\n{PROMPT}",
        f"\u4ee5\u4e0b\u662f\u6539\u8fdb\u540e\u7684\u63d0\u793a\u8bcd\uff1a\n\n{PROMPT}",
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
        "Answer {q}.\n---\nBe brief.\n---\nBe kind.",
        "Quote it like this:\n> text\nfor {q}",
        "Answer {q}.\n\nFeel free to ask {q} back.",
        "You write prompts. Rewrite this one: {q}",
        "Below, {q} is a question.",
        "Here {q} is the question",
        "Below is a question:\n{q}",
        "Here are some new tasks:\n{q}",
        "The following is a question:\n{q}\nAnswer it.",
        "Complete the task below:\n{q}",
        "Final answers only:\n{q}",
        "First write <thinking>your thoughts</thinking>, then answer.\nTask: {q}",
        "First write <thinking>your thoughts</thinking>\nand then the answer to {q}",
        "You are an analyst. <analysis>think here</analysis> Solve: {q}",
        "Answer the following.\n```\n{q}\n```\nOnly give a number.",
        "Answer the following.\n```\n{q}\n```",
        "Fill this in:\n```\nQ: {q}\nA:\n```\nOnly give a number.",
        "```\nQ: {q}\n```\nOnly give a number.",
        "Either\n```\n{q}\n```\nor\n```\n{q}\n```",
        "---\nTask: {q}\n---\nAlways answer in one word.",
        "---\n{q}\n---\nThis version is the one to judge.",
        "",
    ],
)
def test_what_belongs_to_the_prompt_stays(prompt: str) -> None:
    assert prompt_in(prompt, "Answer {q}.", NAMES) == prompt


@pytest.mark.parametrize("place", ["{q}", "{{q}}", "{{ q }}", "{{- q | upper }}", "{q!r}"])
@pytest.mark.parametrize(
    "reply",
    [
        "Here is what I changed.\n\n```\nBe exact. {}\n```\n\nThe new wording is stricter.",
        "I made it stricter.\n\n<prompt>Be exact. {}</prompt>\n\nIt is stricter now.",
        "---\nBe exact. {}\n---\nI kept the placeholder.",
        "Okay, I will shorten it.\n<think>Keep {}.</think>\nBe exact. {}",
    ],
)
def test_a_placeholder_is_found_in_every_form(reply: str, place: str) -> None:
    prompt = prompt_in(reply.replace("{}", place), f"Answer {place}", NAMES)
    assert prompt == f"Be exact. {place}"


def test_a_placeholder_is_not_one_whose_name_only_begins_alike() -> None:
    reply = "I left out {quick}.\n<prompt>Answer {q}</prompt>"
    assert prompt_in(reply, "{q}", NAMES) == "Answer {q}"


def test_instructions_around_a_task_in_a_fence_stay() -> None:
    present = "Answer the question.\n```\nQuestion: {q}\n```"
    prompt = "Answer the question in one word.\n```\nQuestion: {q}\n```"
    assert prompt_in(prompt, present, NAMES) == prompt
    assert prompt_in(f"Here is the new prompt:\n\n{prompt}", present, NAMES) == prompt


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


MARKS = ["---", "> ", "Prompt: ", "assistant\n", "```", "```text", "</s>", "[THINK]", '"', ":"]
TAGS = ["<answer>", "</answer>", "<think>", "</think>"]
PARTS = st.sampled_from([*MARKS, *TAGS, "{q}", "a", "\n", "\n\n", "Let me know"])


@given(st.lists(PARTS, min_size=1, max_size=8).map("".join))
def test_reading_any_reply_ends_and_adds_nothing(reply: str) -> None:
    prompt = prompt_in(reply, "Answer {q}.", NAMES)
    assert len(prompt) <= len(reply)
    assert prompt == prompt.strip()


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
