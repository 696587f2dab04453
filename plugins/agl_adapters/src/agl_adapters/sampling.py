"""Request parameters that change the distribution that tokens are sampled from.

A server reports the log-probability that the model itself gives a token, before these parameters
(vLLM: ``logprobs_mode="raw_logprobs"``). A ratio of probabilities with it as the denominator is
wrong for tokens that were sampled with one of them. Temperature, ``top_p`` and ``top_k`` are not
among them: :func:`other_sampling` compares these with what an algorithm trains.

Names: OpenAI API reference, "Create chat completion"; vLLM's ``SamplingParams``; the sampling
parameters of SGLang and llama.cpp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, cast

from agl_adapters.literals import parse_json, parse_literal
from agl_core import semconv

__all__ = ["altered_sampling", "other_sampling", "request_parameters", "sampling_advice"]

_PREFIX: Final = "gen_ai.request."
_NOTHING: Final = (None, False, 0, "", {}, [])
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "allowed_token_ids": _NOTHING,
    "bad_words": _NOTHING,
    "best_of": (*_NOTHING, 1),
    "custom_logit_processor": _NOTHING,
    "dry_multiplier": _NOTHING,
    "dynatemp_range": _NOTHING,
    "ebnf": _NOTHING,
    "epsilon_cutoff": _NOTHING,
    "eta_cutoff": _NOTHING,
    "frequency_penalty": _NOTHING,
    "grammar": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_decoding": _NOTHING,
    "guided_grammar": _NOTHING,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "ignore_eos": _NOTHING,
    "json_schema": _NOTHING,
    "length_penalty": (None, 1),
    "logit_bias": _NOTHING,
    "logits_processors": _NOTHING,
    "min_new_tokens": _NOTHING,
    "min_p": _NOTHING,
    "min_tokens": _NOTHING,
    "mirostat": _NOTHING,
    "mirostat_mode": _NOTHING,
    "no_repeat_ngram_size": _NOTHING,
    "output_config": _NOTHING,
    "presence_penalty": _NOTHING,
    "regex": _NOTHING,
    "repeat_penalty": (*_NOTHING, 1),
    "repetition_penalty": (*_NOTHING, 1),
    "response_format": (*_NOTHING, {"type": "text"}),
    "structural_tag": _NOTHING,
    "structured_outputs": _NOTHING,
    "text": _NOTHING,
    "tfs": (*_NOTHING, 1),
    "tool_choice": (None, "auto", "none", {"type": "auto"}, {"type": "none"}),
    "top_a": _NOTHING,
    "top_n_sigma": (*_NOTHING, -1),
    "typical_p": (*_NOTHING, 1),
    "use_beam_search": _NOTHING,
    "xtc_probability": _NOTHING,
}
"""Values by parameter that change nothing. A forced tool is sampled with a grammar."""


def request_parameters(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a model was called with, by name, as their attributes hold them.

    They are the agent's own, and what the proxy added where the agent set none.

    Args:
        attributes: Attributes of the call's span, in the GenAI conventions.
    """
    added: Any = parse_json(attributes.get(semconv.REQUEST_DEFAULTS))
    found: dict[str, Any] = {**added} if isinstance(added, dict) else {}
    for key, value in attributes.items():
        if key.startswith(_PREFIX):
            found[key.removeprefix(_PREFIX)] = value
    return found


def altered_sampling(attributes: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of a call's parameters that change what its tokens are sampled from.

    Args:
        attributes: Attributes of the call's span, in the GenAI conventions.
    """
    found: list[str] = []
    for name, value in request_parameters(attributes).items():
        neutral = _NEUTRAL.get(name)
        if neutral is not None and not _changes_nothing(name, parse_literal(value), neutral):
            found.append(name)
    return sorted(found)


def _changes_nothing(name: str, value: Any, neutral: tuple[Any, ...]) -> bool:
    if name in ("text", "output_config") and isinstance(value, dict):
        # Responses and Messages have the format of the answer beside other settings.
        given = cast("dict[str, Any]", value).get("format")
        return given in (None, {"type": "text"})
    return value in neutral


def other_sampling(
    attributes: Mapping[str, Any], *, temperature: float, top_p: float = 1.0
) -> list[str]:
    """Return what of a call's temperature, ``top_p`` and ``top_k`` is not as in training.

    Args:
        attributes: Attributes of the call's span, in the GenAI conventions.
        temperature: Temperature of training.
        top_p: ``top_p`` of training.

    Returns:
        The parameters as ``name=value``.
    """
    asked = request_parameters(attributes)
    trained: Mapping[str, tuple[float, ...]] = {
        "temperature": (temperature,),
        "top_p": (top_p,),
        "top_k": (0, -1),
    }
    return [
        f"{name}={asked[name]}"
        for name, values in trained.items()
        # 0.7 as JSON and 0.7 as a number are the same temperature.
        if asked.get(name) is not None and _number(asked[name]) not in values
    ]


def sampling_advice(asked: Counter[str], temperature: float, option: str) -> str:
    """Return what to do about an agent whose calls are not sampled as in training.

    Args:
        asked: How they are sampled, with the number of rollouts.
        temperature: Temperature of training.
        option: How to set it.
    """
    sampling = "; ".join(how for how, _ in asked.most_common(3))
    return (
        f"the agent asks for {sampling}. It is trained at temperature={temperature:g}: set "
        f"{option}, or leave these parameters out, and send calls that are not to be trained (a "
        "judge, a router) to another model"
    )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
