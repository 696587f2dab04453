from __future__ import annotations

from typing import Any, Literal

import pytest

import agl_core as agl
from agl_train.constructors import lightning_cli


class Search:
    def __init__(
        self,
        beam_width: int,
        *,
        rate: float = 0.5,
        name: str | None = "x",
        verbose: bool = False,
        seeds: list[int] | None = None,
        words: list[str] = [],  # noqa: B006
        level: Literal["low", 3] = "low",
        limit: int | float | str = 1,
        client: dict[str, Any] | None = None,
        **rest: object,
    ) -> None:
        self.given = (beam_width, rate, name, verbose, seeds, words, level, limit, client, rest)


class Other:
    def __init__(self, size=3):
        self.size = size


def given(*words: str) -> tuple[object, ...]:
    return lightning_cli(Search, args=["--search.beam-width", "4", *words]).given


def test_defaults_are_the_constructors():
    assert given() == (4, 0.5, "x", False, None, [], "low", 1, None, {})


@pytest.mark.parametrize(
    ("words", "index", "value"),
    [
        (["--search.rate", "2"], 1, 2.0),
        (["--search.name", "y"], 2, "y"),
        *((["--search.name", word], 2, None) for word in ("none", "NULL", "~", "nil")),
        *((["--search.verbose", word], 3, True) for word in ("yes", "True", "t", "y", "1")),
        (["--search.verbose", "no"], 3, False),
        (["--search.seeds", "1", "2"], 4, [1, 2]),
        (["--search.seeds"], 4, []),
        (["--search.words", "a"], 5, ["a"]),
        (["--search.level", "3"], 6, 3),
        (["--search.limit", "2"], 7, 2),
        (["--search.limit", "2.5"], 7, 2.5),
        (["--search.limit", "much"], 7, "much"),
    ],
)
def test_values(words, index, value):
    found = given(*words)[index]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search.beam-width", "many"], "invalid int value: 'many'"),
        (["--search.beam-width", "1", "--search.level", "high"], "'high' is not one of low, 3"),
        (["--search.beam-width", "1", "--search.verbose", "maybe"], "invalid _boolean value"),
        ([], "the following arguments are required: --search.beam-width"),
        (["--search.beam-width", "1", "--search.client", "x"], "unrecognized arguments"),
    ],
)
def test_words_that_do_not_fit(capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        lightning_cli(Search, args=words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_several_classes():
    search, other = lightning_cli(
        Search, Other, args=["--other.size", "big", "--search.beam-width", "1"]
    )
    assert (search.given[0], other.size) == (1, "big")


def test_a_required_parameter_that_no_word_converts_to():
    class Needs:
        def __init__(self, client: dict[str, str]) -> None: ...

    with pytest.raises(TypeError, match="parameter 'client' has no default and cannot be given"):
        lightning_cli(Needs, args=[])


def test_a_trainer():
    words = ["--trainer.n-runners", "2", "--trainer.port", "none"]
    trainer = lightning_cli(agl.Trainer, args=words)
    assert trainer.n_runners == 2
