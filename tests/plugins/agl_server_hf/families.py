"""Chat templates and small tokenizers of five families, by the rules of their published templates.

What matters for histories is kept, and the rest left out:

- Qwen3: reasoning is cut off before the last message of the user; the last answer after it begins
  with its reasoning, empty if there is none; results of tools are in messages of the user.
- Llama 3.1: heads of roles, one end token for all; one tool call in a message; text is trimmed.
- Mistral 7 (v7): nothing between turns; ids of calls have nine letters; results name the call.
- Mistral v3: system message and tools are before the *last* message of the user.
- Gemma 3: no system role, its text begins the first message; text is trimmed; ``model`` answers.
- DeepSeek R1: everything before ``</think>`` is cut off; the prompt ends with ``<think>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

QWEN3 = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
{%- if ns.searching and message.role == 'user' %}
{%- set ns.searching = false %}{%- set ns.query = messages|length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}{%- set thought = message.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.query and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA3 = """\
{{- '<|begin_of_text|>' }}
{%- for message in messages %}
{%- if message.tool_calls and message.tool_calls | length > 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.first %}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{%- endif %}
{%- if message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- else %}{{- message.content | trim }}{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_MISTRAL_TURNS = """\
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' + (']' if loop.last else ', ') }}
{%- endfor %}
{{- '</s>' }}
{%- elif message.role == 'assistant' %}{{- message.content + '</s>' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}
"""

MISTRAL = (
    """\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}
{{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}
{%- endif %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
"""
    + _MISTRAL_TURNS
)

MISTRAL_V3 = (
    """\
{{- '<s>' }}
{%- set ns = namespace(user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.index0 == ns.user %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' }}
{%- if messages[0].role == 'system' and loop.index0 == ns.user %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- message.content + '[/INST]' }}
"""
    + _MISTRAL_TURNS
)

GEMMA = """\
{{- '<bos>' }}
{%- set first = '' %}
{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + '\\n\\n' %}{%- endif %}
{%- for message in messages %}
{%- if message.role != 'system' %}
{%- set role = 'model' if message.role == 'assistant' else 'user' %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if message.role == 'user' and loop.index0 < 2 %}
{{- first }}{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}
{%- endif %}
{%- if message.role == 'tool' %}{{- '<tool_response>' + message.content | trim + '</tool_response>' }}
{%- else %}{{- message.content | trim }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<end_of_turn>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

DEEPSEEK = """\
{{- '<｜begin▁of▁sentence｜>' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- for tool in tools or [] %}{{- '\\n' + tool | tojson }}{%- endfor %}
{%- set ns = namespace(results=false) %}
{%- for message in messages %}
{%- if ns.results and message.role != 'tool' %}
{{- '<｜tool▁outputs▁end｜>' }}{%- set ns.results = false %}
{%- if message.role == 'user' %}{{- '<｜end▁of▁sentence｜>' }}{%- endif %}
{%- set after = true %}
{%- else %}{%- set after = false %}{%- endif %}
{%- if message.role == 'user' %}{{- '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '' if after else '<｜Assistant｜>' }}{{- '<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments | tojson + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1] %}
{{- ('' if after else '<｜Assistant｜>') + content + '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{{- '' if ns.results else '<｜tool▁outputs▁begin｜>' }}{%- set ns.results = true %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- endif %}
{%- endfor %}
{%- if ns.results %}{{- '<｜tool▁outputs▁end｜>' }}{%- endif %}
{%- if add_generation_prompt %}
{{- '<think>\\n' if ns.results else '<｜Assistant｜><think>\\n' }}
{%- endif %}
"""


@dataclass(frozen=True)
class Family:
    """A family's template and the special tokens in it.

    Attributes:
        template: Its chat template.
        end: The token that ends an answer.
        special: Its other special tokens.
        opened: Whether the prompt ends with the mark that begins reasoning.
    """

    template: str
    end: str
    special: Sequence[str]
    opened: bool = False


_MISTRAL_MARKS = [
    f"[{mark}{name}]"
    for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS", "SYSTEM_PROMPT")
    for mark in ("", "/")
]
FAMILIES = {
    "qwen3": Family(QWEN3, "<|im_end|>", ["<|endoftext|>", "<|im_start|>"]),
    "llama3": Family(
        LLAMA3,
        "<|eot_id|>",
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"],
    ),
    "mistral": Family(MISTRAL, "</s>", ["<s>", "[TOOL_CALLS]", *_MISTRAL_MARKS]),
    "mistral_v3": Family(MISTRAL_V3, "</s>", ["<s>", "[TOOL_CALLS]", *_MISTRAL_MARKS]),
    "gemma": Family(GEMMA, "<end_of_turn>", ["<bos>", "<eos>", "<start_of_turn>"]),
    "deepseek": Family(
        DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        [
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁sep｜>",
            *(
                f"<｜tool▁{name}▁{mark}｜>"
                for name in ("calls", "call", "outputs", "output")
                for mark in ("begin", "end")
            ),
        ],
        opened=True,
    ),
}

_TEXT = """\
The agent asks for the weather of a city and for the time, thinks about what it was told, and says
what it found: answer one two three. {"name": "look", "arguments": {"city": "Paris", "day": 1}}
"""


def build_family(name: str) -> Any:
    """Return the tokenizer of a family: byte-level BPE, so it encodes any text."""
    family = FAMILIES[name]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [family.end, *family.special, "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 256 + 150,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Template text is learned as well, so that there are merges at the seams of turns.
    bpe.train_from_iterator([_TEXT, family.template, json.dumps(_TEXT)] * 3, trainer)
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    marks += ["<think>", "</think>"]
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=family.end,
        pad_token="<pad>",  # noqa: S106 -- no secret
        chat_template=family.template,
        model_max_length=2**16,
        clean_up_tokenization_spaces=False,
    )
