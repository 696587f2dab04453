"""Pages that scripts write: the list for language models, and the page of performance."""

from __future__ import annotations

import re

import pytest

from devtools import llms_page, performance_page, scale_page
from devtools.process import ROOT

LINK = re.compile(r"^- \[(.+?)\]\((.+?)\)", re.MULTILINE)

OUTPUT = """
============================= test session starts ==============================
platform linux -- Python 3.11.7, pytest-9.2.0
cs: from enqueue to agent start p50 2.91 ms
.


idle to start: median 0.32 ms
.
1 passed in 20.23s
"""


def test_the_list_for_language_models_has_the_pages_of_the_site():
    # Titles and new guides may lag until the list is written again; the site's list is current.
    names = {name for _, name in LINK.findall(llms_page.FILE.read_text())}
    assert names <= {name for _, name in LINK.findall(llms_page.page())}, "run: python3 dev.py llms"
    assert {"README.md", "docs/quick-start.md", "docs/assistants.md"} <= names
    for folder in ("concepts", "how-to", "tutorials"):
        pages = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"docs/{folder}/*.md")}
        assert pages <= names, "run: python3 dev.py llms"
    assert all((ROOT / name).is_file() for name in names)


def test_a_page_is_described_by_its_first_sentence():
    text = "# A title\n\n![x](y.svg)\n\n**The** [store](s.md) is kept. It has\nmore.\n"
    assert llms_page.describe(text) == ("A title", "The store is kept")


def test_the_page_of_performance_has_median_range_and_load_of_what_a_benchmark_printed():
    runs = [OUTPUT, OUTPUT.replace("2.91", "12.50"), OUTPUT.replace("2.91", "2.70")]
    found = performance_page.Measured(runs, others=[0.04, 1.26, 0.5])
    page = performance_page.page({"trainer": found}, machine="M", date="D")
    assert "Measured on M, D. Each section says" in page
    varied = "cs: from enqueue to agent start p50 2.91 [2.70-12.50] ms"
    assert f"```text\n{varied}\n\nidle to start: median 0.32 ms\n```" in page
    assert "\n3 runs; other programs used 0.0 to 1.3 of " in page
    assert "Measures whole runs" in page
    assert "Run `python" not in page


def test_figures_with_thousands_are_ordered_by_value_and_names_are_no_figures():
    lines = ["p99 of 1,000 spans: 990.5 us (1/9)", "p99 of 1,000 spans: 1,010.0 us (1/10)"]
    found = performance_page.merged("x", [*lines, "p99 of 1,000 spans:   985.0 us (1/8)"])
    assert found == "p99 of 1,000 spans: 990.5 [985.0-1,010.0] us (1/9 [8-10])"


def test_runs_that_print_different_lines_are_not_merged():
    with pytest.raises(SystemExit, match="bench x printed different lines"):
        performance_page.merged("x", ["a 1", "b 1"])


def test_figures_of_the_readme_are_those_of_the_page():
    readme = (ROOT / "README.md").read_text()
    page = performance_page.PAGE.read_text()
    for threads, processes in re.findall(r"([\d.]+) ms in a process, ([\d.]+) ms between", readme):
        found = dict(
            re.findall(
                r"^(shm|cs): from enqueue .* p50 ([\d.]+)(?: \[\S+\])? ms", page, re.MULTILINE
            )
        )
        assert f"{float(found['shm']):.1f}" == threads
        assert f"{float(found['cs']):.1f}" == processes
        break
    else:
        raise AssertionError("the README has no figure of a waiting runner")


def test_the_page_of_scale_has_ceilings_and_sizes_of_what_was_measured():
    cost = {"server_ms": 2.0, "database_ms": 1.0, "algorithm_ms": 0.5}
    stores = [
        {"part": "store", "store": name, "workers": workers, **cost}
        for name, workers in (("sqlite", 1), ("postgres", 2))
    ]
    proxy = {"part": "proxy", "prompt": "8,000 tokens", "proxy_ms": 1.4}
    page = scale_page.page([*stores, proxy], machine="M", when="D", load="L.")
    assert "Measured on M, D. L.\n" in page
    assert "| sqlite | 1 | 2.00 ms |  | 0.50 ms | 500 rollouts/s | 2,000 rollouts/s |" in page
    assert "| 8,000 tokens | 1.40 ms | 714 calls/s |" in page
    # 166.7 rollouts a second of 2 ms are a third of a core, which is 70 % in use.
    assert "| 10,000 | 166.7 | 0.48 | 0.48 | 0.24 | 2.67 | 0.12 |" in page
