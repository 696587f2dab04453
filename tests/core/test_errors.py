import inspect
import pickle
import re

import pytest

from agl_core import errors
from tests.tables import check_each


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.RolloutNotFoundError, ValueError),
        (errors.AttemptNotFoundError, ValueError),
        (errors.InvalidArgumentError, ValueError),
        (errors.SpansEvictedError, RuntimeError),
        (errors.StoreUnavailableError, ConnectionError),
        (errors.PluginNotFoundError, ValueError),
        (errors.MissingDependencyError, ImportError),
        (errors.PermissionDeniedError, PermissionError),
    ],
)
def test_each_error_is_also_the_built_in_the_reference_raises(error, builtin):
    assert issubclass(error, errors.AglError)
    assert issubclass(error, builtin)


def test_the_drawing_names_every_error():
    drawn = set(re.findall(r"\w+Error\b", (errors.__doc__ or "").split("Each error")[0]))
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.AglError)
    }
    assert defined <= drawn
    assert defined <= set(errors.__all__)


def test_errors_are_found_by_name_across_http():
    assert errors.error_class("RolloutNotFoundError") is errors.RolloutNotFoundError
    assert errors.error_class("ValueError") is errors.AglError
    assert errors.error_class("error_class") is errors.AglError


def test_each_error_is_made_again_from_its_name_and_message():
    def check(name: str) -> None:
        error = errors.error_class(name)("the x engine failed")
        assert type(error).__name__ == name
        assert str(error) == "the x engine failed"

    check_each(check, [name for name in errors.__all__ if name.endswith("Error")])


@pytest.mark.parametrize(
    "error",
    [
        errors.MissingDependencyError("the x engine", pip="x>=2"),
        errors.ConfigError("unknown key", path="store.pathh"),
    ],
)
def test_errors_travel_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_config_errors_lead_with_the_path():
    error = errors.ConfigError("unknown key", path="store.pathh")
    assert str(error) == "store.pathh: unknown key"
    assert error.path == "store.pathh"
    assert str(errors.ConfigError("no such file")) == "no such file"


def test_a_missing_dependency_names_the_command():
    assert str(errors.MissingDependencyError("the x engine", pip="x>=2")) == (
        "the x engine needs a package that is not installed: pip install 'x>=2'"
    )
    elsewhere = errors.MissingDependencyError("the x engine", pip="x>=2", python="/env/bin/python")
    assert str(elsewhere).endswith(": /env/bin/python -m pip install 'x>=2'")


def test_an_error_of_a_plugin_is_found_by_its_name() -> None:
    class QuotaError(errors.StoreUnavailableError):
        pass

    class DeepQuotaError(QuotaError):
        pass

    assert errors.error_class("QuotaError") is QuotaError
    assert errors.error_class("DeepQuotaError") is DeepQuotaError


def test_an_error_of_the_core_wins_over_a_plugins_of_the_same_name() -> None:
    theirs = type("TracerError", (errors.NotFoundError,), {})

    assert errors.error_class("TracerError") is errors.TracerError
    assert errors.error_class("TracerError") is not theirs
