"""The templates of scripted servers: what they refuse, and prompts that continue each other."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agl_scripted import TEMPLATES, Reply, ScriptedModels, ToolCall, prompt_tokens, tokenize

CALL = {"id": "aB3dE5fG7", "type": "function", "function": {"name": "run", "arguments": "{}"}}
SYSTEM, USER = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "a"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "aB3dE5fG7", "content": "r"}
DEVELOPER = {"role": "developer", "content": "d"}
OTHER_ID = [
    {**CALLED, "tool_calls": [{**CALL, "id": "call_1"}]},
    {**RESULT, "tool_call_id": "call_1"},
]
TWICE = {**CALLED, "tool_calls": [CALL, CALL]}
EVERY = set(TEMPLATES)


@pytest.mark.parametrize(
    ("messages", "refusing"),
    [
        ([SYSTEM, USER, CALLED, RESULT, SAID, USER], set()),
        ([USER, CALLED, RESULT, CALLED, RESULT], set()),
        ([], EVERY),
        ([SYSTEM], {"qwen"}),
        ([SYSTEM, SYSTEM, USER], {"qwen", "mistral", "gemma"}),
        ([SYSTEM, USER, SYSTEM], {"qwen", "mistral", "gemma"}),
        ([DEVELOPER, USER], {"qwen", "mistral", "gemma", "deepseek"}),
        ([USER, USER], {"mistral", "gemma", "deepseek"}),
        ([USER, SAID, SAID], {"mistral", "gemma", "deepseek"}),
        ([SAID, USER], {"mistral", "gemma", "deepseek"}),
        ([USER, CALLED, RESULT, USER], {"mistral", "gemma"}),
        ([USER, *OTHER_ID], {"mistral"}),
        ([USER, TWICE, RESULT], {"llama"}),
    ],
)
def test_each_template_refuses_what_its_family_does(messages: list[Any], refusing: set[str]):
    found: set[str] = set()
    for name, template in TEMPLATES.items():
        with (
            ScriptedModels([Reply("ok")], template=template) as models,
            openai.OpenAI(base_url=models.base_url, api_key="k", max_retries=0) as client,
        ):
            try:
                client.chat.completions.create(model="m", messages=messages)
            except openai.BadRequestError:
                found.add(name)
    assert found == refusing


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_next_prompt_begins_with_prompt_and_answer(name: str, stream: bool):
    template = TEMPLATES[name]
    asked: dict[str, Any] = {"messages": [SYSTEM, USER], "tools": [{"function": {"name": "run"}}]}
    reply = Reply("I look.", tool_calls=[ToolCall("run", {"a": [1, "two words"]}, "aB3dE5fG7")])
    before = [token.id for token in template.prompt(asked)]
    call = {**CALL, "function": {"name": "run", "arguments": '{"a":[1,"two words"]}'}}
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    after = [*asked["messages"], answer, RESULT]
    sampled = [token.id for token in reply.tokens]
    ids = [token.id for token in template.prompt({**asked, "messages": after})]
    assert ids[: len(before) + len(sampled)] == before + sampled
    with (
        ScriptedModels([reply], template=template) as models,
        openai.OpenAI(base_url=models.base_url, api_key="k", max_retries=0) as client,
    ):
        got: Any = client.chat.completions.create(
            model="m", **asked, stream=stream, extra_body={"return_token_ids": True}
        )
        first = next(iter(got)) if stream else got
        assert first.prompt_token_ids == before
        if stream:
            got.close()
        rendered: Any = client.post("/tokenize", body=asked, cast_to=object)
        assert rendered == {"tokens": before, "count": len(before)}
        with pytest.raises(openai.BadRequestError):
            client.post("/tokenize", body={"messages": []}, cast_to=object)
    assert before != [token.id for token in prompt_tokens(asked)]
    assert tokenize("two words")[1].text == " words"
