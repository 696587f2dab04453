"""Jinja templates from strangers: no access to Python, and bounded memory and time."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, UndefinedError

from agl_core.errors import InvalidArgumentError, PluginNotFoundError
from agl_core.types import PromptTemplate

REFUSED = (InvalidArgumentError, SecurityError, UndefinedError)


class Task:
    """An argument of a template, in a module that imports ``os``."""


def fill(template: str, **values: Any) -> str:
    return PromptTemplate(template=template, engine="jinja").format(**values)


BOMBS = {
    "repetition": "{{ 'a' * 10**9 }}",
    "repetition of a list": "{{ ([1] * 1000000000)|length }}",
    "power": "{{ 2 ** 100000000 }}",
    "powers": "{% set ns = namespace(x=9) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "width": "{{ 'a'.center(1000000000) }}",
    "width of a filter": "{{ 'a'|center(1000000000) }}",
    "width of a constant": "{% set a = 'a'|center(width=1000000000) %}",
    "width in a format": "{{ '{:>1000000000}'.format(1) }}",
    "width as an argument of format": "{{ '{:>{}}'.format(1, 1000000000) }}",
    "width in a % format": "{{ '%1000000000d' % 1 }}",
    "width as an argument of %": "{{ '%*d' % (1000000000, 1) }}",
    "width in the filter format": "{{ '%1000000000d'|format(1) }}",
    "width after a name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "width after a name with brackets": "{{ '%(a(b(c)))1000000000d' % {'a(b(c))': 1} }}",
    "width in a map": "{{ '{a:{w}}'.format_map({'a': 1, 'w': 1000000000}) }}",
    "precision": "{{ '{:.1000000000f}'.format(1.5) }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big')|length }}",
    "width of bytes": "{{ (1).to_bytes(1, 'big').ljust(1000000000)|length }}",
    "rounding": "{{ 3|round(-100000000) }}",
    "filled batch": "{{ [1]|batch(1000000000, 0)|list|length }}",
    "indent of JSON": "{{ range(90000)|list|tojson(indent=9999)|length }}",
    "indent": "{{ x|indent(1000000000) }}",
    "indent of many lines": "{{ ('\n' * 9 ~ x)|replace('x', '\n')|indent(9999) }}",
    "tabs": "{{ x|replace('x', '\t')|list|join('')|upper }}{{ x.expandtabs(1000000000) }}",
    "many lorem ipsum": "{{ lipsum(n=100000) }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over text": "{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
    "a loop in a loop's else": "{% for i in range(99999) if i < 0 %}{% else %}"
    "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a recursive macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a macro of two calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(40) }}",
    "doubled text": "{% set ns = namespace(s=x) %}{% for i in range(40) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "added text": "{% set ns = namespace(s=x) %}{% for i in range(40) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "doubled lists": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "doubled tuples": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ ns.s }}",
    "doubled objects": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s }}",
    "doubled arguments": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = dict(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s }}",
    "replacement": "{{ x|replace('x', x) }}",
    "replacement by a method": "{{ x.replace('', x) }}",
    "join": "{{ x|join(x) }}",
    "join by a method": "{{ x.join(x) }}",
    "output": "{% for i in range(99999) %}{{ x }}{% endfor %}",
    "map": "{{ range(99999)|map('string')|map('center', 9999)|list|length }}",
    "deep brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep lists": "{{ " + "[" * 500 + "]" * 500 + " }}",
    "deep blocks": "{% if x %}" * 200 + "{% endif %}" * 200,
    "many tags": "{{ x }}" * 100_000,
    "not Jinja": "{% oops",
    "Python": "{{ ''.__class__.__mro__ }}",
    "Python by a filter": "{{ ''|attr('__class__') }}",
    "Python by a format": "{{ '{0.__class__}'.format(x) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_jinja_templates_that_are_refused(name: str):
    began, memory = time.process_time(), _peak()
    with pytest.raises(REFUSED) as caught:
        fill(BOMBS[name], x="x" * 20_000)
    assert time.process_time() - began < 2
    assert _peak() - memory < 50 * 2**20
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def _peak() -> int:
    """Return the largest memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_jinja_templates_that_are_filled():
    runs = [{"reward": 0.5, "lines": ["a\n"] * 50, "log": "y" * 100_000} for _ in range(50)]
    template = (
        "{% macro row(run, sep=', ') %}{{ run.lines|join(sep) }}{% endmacro %}"
        "{%- set ns = namespace(best=0) -%}"
        "{% for number, run in [(1, runs[0]), (2, runs[1])] %}{{ number }}{% endfor %}"
        "{% for run in runs %}{% set ns.best = ns.best + run.reward * 2 %}"
        "{{ loop.index }}/{{ loop.length }} {{ '%.2f'|format(run.reward) }} "
        "{{ row(run)|indent(4) }} {{ run|tojson|length }} {{ '{:>6}'.format('a') ~ 'b' }}"
        "{{ run.log }}{{ {'a': [1, (2, 3)]}.a|string|replace('1', '9')|center(12) }}\n"
        "{% else %}none{% endfor %}{{ ns.best }}{{ range(3)|map('string')|join('-') }}"
    )
    filled = fill(template, runs=runs)
    assert filled.startswith("121/50 0.50 a")
    assert filled.endswith("50.00-1-2")
    assert len(filled) > 5_000_000


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ '%d items'|format(n) }}", "1234567 items"),
        ("{{ '{:,}'.format(n) }}", "1,234,567"),
        ("{{ 'zip 90210: {}'.format(n) }}", "zip 90210: 1234567"),
        ("{{ '12345 rows: %s' % n }}", "12345 rows: 1234567"),
        ("{{ missing|default(32768) }}", "32768"),
        ("{{ [{'p': n}]|selectattr('p', 'gt', 20000)|list|length }}", "1"),
        ("{{ 'x'|int(100000) }}", "100000"),
        ("{{ 'short'|truncate(50000) }}", "short"),
        ("{{ '%s and %s' % (n, n) }}", "1234567 and 1234567"),
        ("{{ 'abc'.startswith(('x', 'a' ~ 'b')) }}", "True"),
        ("{{ (258).to_bytes(2, 'big').hex() }}", "0102"),
    ],
)
def test_numbers_that_are_no_sizes_may_be_large(template: str, filled: str):
    assert fill(template, n=1234567) == filled


def test_secrets_are_out_of_reach(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGL_AUTH_TOKEN", "the-secret")
    assert os.environ["AGL_AUTH_TOKEN"] == "the-secret"
    with pytest.raises(REFUSED) as caught:
        fill("{{ x.__init__.__globals__.os.environ }}", x=Task())
    assert "the-secret" not in str(caught.value)


def test_a_missing_placeholder_is_an_error():
    with pytest.raises(UndefinedError):
        fill("{{ a }}")


@pytest.mark.usefixtures("agl_registry")
def test_without_the_plugin_the_error_names_it():
    with pytest.raises(PluginNotFoundError, match="no template_engine 'jinja' is installed"):
        fill("{{ a }}", a=1)


BIG = "{% set ns = namespace(big='ab' * 5000) %}{% for i in range(9) %}"
BIG += "{% set ns.big = ns.big ~ ns.big %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        BIG + "{% for i in range(200000) %}{% if 'x' in ns.big %}{% endif %}{% endfor %}",
        BIG + "{{ " + " or ".join(["'x' in ns.big"] * 20_000) + " }}",
        BIG + "{{ " + " or ".join(["ns.big|wordcount == 3"] * 5_000) + " }}",
        BIG + "{% for i in range(100000) %}{{ ns.big|urlize|length }}{% endfor %}",
        BIG + "{% for i in range(200000) %}{{ ns.big.find('x') }}{% endfor %}",
    ],
    ids=["search", "searches", "words", "links", "find"],
)
def test_a_template_ends_in_seconds(template: str):
    started = time.monotonic()
    with pytest.raises(REFUSED):
        fill(template)
    assert time.monotonic() - started < 20
