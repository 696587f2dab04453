"""The kit's rules: which ways of switching a test off are allowed, and which fail the run."""

from __future__ import annotations

import pytest

SUITE = """
import pytest
from agl_testing.suite import Suite, requires, since

class DemoSuite(Suite):
    suite_name = "demo"
    FLAGS = {"fast": "it is fast", "durable": "it is durable"}

    def test_plain(self):
        pass

    @requires("fast")
    def test_fast(self):
        pass

    @requires("fast", "durable")
    def test_both(self):
        pass

    def test_failing(self):
        assert 1 == 2

    @pytest.mark.parametrize("number", [1, 2])
    @requires("durable")
    def test_cases(self, number):
        assert number == 1
"""


@pytest.fixture
def kit(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder whose module `agl_testing.demo` acts as a suite of the kit."""
    pytester.makeconftest(
        "import sys, types\n"
        "import agl_testing\n"
        "module = types.ModuleType('agl_testing.demo')\n"
        f"exec(compile({SUITE!r}, 'demo', 'exec'), module.__dict__)\n"
        "sys.modules['agl_testing.demo'] = module\n"
    )
    return pytester


def run(pytester: pytest.Pytester, body: str, *options: str):
    pytester.makepyfile("import pytest\nfrom agl_testing.demo import DemoSuite\n\n" + body)
    options = ("-p", "no:cacheprovider", "-o", "asyncio_mode=strict", "-rs", *options)
    return pytester.runpytest_subprocess(*options)


def test_flags_are_all_that_skips(kit):
    result = run(kit, "class TestDemo(DemoSuite):\n    flags = frozenset({'fast'})\n")
    result.assert_outcomes(passed=2, skipped=3, failed=1)
    result.stdout.fnmatch_lines(["*not claimed in TestDemo.flags: *'durable'*"])


def test_an_unknown_flag_is_an_error(kit):
    result = run(kit, "class TestDemo(DemoSuite):\n    flags = frozenset({'quick'})\n")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*TestDemo.flags names ?'quick'?*knows ?'durable', 'fast'?*"])


@pytest.mark.parametrize(
    "body",
    [
        "    def test_failing(self):\n        pass\n",
        "    test_failing = None\n",
        "    @pytest.mark.skip\n    def test_failing(self): ...\n",
    ],
)
def test_an_overridden_test_fails_the_run(kit, body):
    result = run(kit, "class TestDemo(DemoSuite):\n" + body)
    assert result.ret != 0
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestDemo overrides or deletes conformance tests: test_failing*"])


def test_a_test_deleted_from_the_suite_fails_the_run(kit):
    result = run(
        kit,
        "class Lenient(DemoSuite):\n    test_failing = None\n\n"
        "class TestDemo(Lenient):\n    pass\n",
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*overrides or deletes conformance tests: test_failing*"])


def test_a_subclass_may_add_tests(kit):
    result = run(kit, "class TestDemo(DemoSuite):\n    def test_mine(self):\n        pass\n")
    result.assert_outcomes(passed=2, skipped=4, failed=1)


def test_an_expected_failure_is_run_and_has_a_reason(kit):
    body = "class TestDemo(DemoSuite):\n    expected_failures = {'test_failing': 'issue 7'}\n"
    result = run(kit, body, "-rx")
    result.assert_outcomes(passed=1, skipped=4, xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL*test_failing*issue 7*"])


def test_an_expected_failure_that_passes_fails_the_run(kit):
    body = "class TestDemo(DemoSuite):\n    expected_failures = {'test_plain': 'issue 7'}\n"
    result = run(kit, body)
    result.assert_outcomes(skipped=4, failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)* issue 7*"])


def test_one_case_may_be_expected_to_fail(kit):
    body = "class TestDemo(DemoSuite):\n    flags = frozenset({'durable'})\n"
    body += "    expected_failures = {'test_cases[2]': 'issue 7', 'test_failing': 'issue 8'}\n"
    run(kit, body).assert_outcomes(passed=2, skipped=2, xfailed=2)


def test_an_expected_failure_of_no_test_is_an_error(kit):
    body = "class TestDemo(DemoSuite):\n    expected_failures = {'test_gone': 'issue 7'}\n"
    result = run(kit, body)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*TestDemo.expected_failures names no test: *test_gone*"])


class TestNewTests:
    """A test that is new in this minor version only warns; it counts from the next version."""

    def body(self, version: str) -> str:
        return f"""
from agl_testing.suite import SUITE_VERSION, Suite, since

class TestNew(Suite):
    @since({version})
    def test_new(self):
        assert 1 == 2
"""

    @pytest.mark.parametrize("options", [(), ("-W", "error")])
    def test_it_only_warns(self, kit, options):
        result = run(kit, self.body("SUITE_VERSION"), *options)
        assert result.ret == 0
        result.assert_outcomes(xfailed=1, warnings=1)
        result.stdout.fnmatch_lines(["*NewConformanceTestWarning*test_new fails and will count*"])

    def test_it_counts_in_strict_mode(self, kit):
        run(kit, self.body("SUITE_VERSION"), "--agl-strict").assert_outcomes(failed=1)

    def test_it_counts_in_the_next_version(self, kit):
        run(kit, self.body("'0.0'")).assert_outcomes(failed=1)


class TestFixtures:
    def test_the_registry_refuses_to_discover(self, pytester):
        pytester.makepyfile(
            """
            import pytest
            from agl_core.plugins import Registry, build_component, get_registry
            from agl_core.errors import PluginNotFoundError

            def test_it(agl_registry):
                found = {record.dist for record in get_registry().records}
                assert found == {"agl-algorithm-kit", "agl-cli-kit", "agl-exec-shm", "agl-runner",
                                 "agl-store-memory", "agl-tracer-dummy", "agl-tracer-otel"}
                assert type(build_component("store", "memory")).__name__ == "InMemoryLightningStore"
                with pytest.raises(AssertionError, match="must not look at what is installed"):
                    Registry.discover()

            def test_additions_end_with_their_test(agl_registry):
                agl_registry.add("store.mine", "my_hooks")
                assert get_registry().find("store", "mine").dist == "agl-under-test"

            def test_next(agl_registry):
                with pytest.raises(PluginNotFoundError):
                    get_registry().find("store", "mine")

            def test_a_bad_name(agl_registry):
                with pytest.raises(ValueError, match="names no kind"):
                    agl_registry.add("shop.mine", "my_hooks")
            """
        )
        pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)

    def test_only_the_test_moves_the_clock(self, pytester):
        pytester.makepyfile(
            """
            import time

            def test_it(agl_clock):
                start = time.time()
                time.sleep(0.01)
                assert time.time() == start == agl_clock.now
                agl_clock.advance(60)
                assert time.time() == start + 60

            def test_time_goes_on_afterwards():
                start = time.time()
                time.sleep(0.01)
                assert time.time() > start
            """
        )
        pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
