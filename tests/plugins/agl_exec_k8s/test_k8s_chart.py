"""The Helm chart, rendered by Helm itself; every manifest against the schemas of Kubernetes."""

from __future__ import annotations

from typing import Any

import click
import helm_python
import kubernetes_validate
import pytest
import yaml

from agl_exec_cs.cli import runner
from agl_proxy_direct.cli import proxy
from agl_store_http.cli.store import store
from tests.plugins.agl_exec_k8s.parts import ROOT, permissions

pytestmark = pytest.mark.heavy

CHART = ROOT / "deploy/helm/agl"
COMMANDS: dict[str, click.Command] = {"store": store, "proxy": proxy, "runner": runner}
TOKENS = {"secret": "s" * 32, "runner": "r" * 32}

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry-key"}],
    "tokens": TOKENS,
    "store": {
        "backend": "postgres",
        "uri": "postgresql://agl@postgres/agl",
        "passwordSecret": {"name": "postgres"},
        "settings": {"max_connections": 4},
        "replicas": 3,
        "workers": 2,
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "store.example",
            "tlsSecret": "tls",
            "annotations": {"a": "b"},
        },
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "x", "operator": "Exists"}],
    },
    "proxy": {
        "enabled": True,
        "models": [{"name": "qwen", "url": "http://vllm:8000/v1"}],
        "apiKeySecret": {"name": "keys"},
    },
    "runners": {
        "enabled": True,
        "env": [{"name": "MODE", "value": "train"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
    },
    "strategy": {"enabled": True},
}


def render(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the manifests of a release, by kind and name."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="demo", namespace="training")
    found = [
        manifest
        for name, text in files.items()
        if name.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


@pytest.mark.parametrize("version", ["1.29.0", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("values", [{"tokens": TOKENS}, EVERYTHING], ids=["defaults", "all"])
def test_manifests_are_valid(version: str, values: dict[str, Any]) -> None:
    made = render(values)
    assert "Deployment/demo-store" in made
    for manifest in made.values():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("values", [{"tokens": TOKENS}, EVERYTHING], ids=["defaults", "all"])
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_every_value_is_known_to_the_chart() -> None:
    """A value that no template uses would be a promise that nothing keeps."""
    texts = "".join(path.read_text() for path in (CHART / "templates").iterdir())

    def names(values: dict[str, Any]) -> set[str]:
        inner = [names(each) for each in values.values() if isinstance(each, dict)]
        return set(values).union(*inner)

    unused = {
        name
        for name in names(yaml.safe_load((CHART / "values.yaml").read_text()))
        if f".{name}" not in texts
    }
    assert unused == set()


def test_what_is_on_by_default() -> None:
    assert set(render({"tokens": TOKENS})) == {
        "Secret/demo-tokens",
        "Deployment/demo-store",
        "Service/demo-store",
        "PersistentVolumeClaim/demo-store",
    }


def test_tokens_are_only_in_the_secret() -> None:
    made = render(EVERYTHING)
    secret = made.pop("Secret/demo-tokens")
    assert secret["stringData"] == TOKENS
    for token in TOKENS.values():
        assert token not in str(made)


def test_a_secret_that_exists_is_used() -> None:
    made = render(EVERYTHING | {"tokens": {"existingSecret": "mine"}})
    assert not [name for name in made if name.startswith("Secret/")]
    for name, key in (("store", "secret"), ("proxy", "secret"), ("runner", "runner")):
        (container,) = made[f"Deployment/demo-{name}"]["spec"]["template"]["spec"]["containers"]
        token = container["env"][0]
        assert token["name"] == "AGL_AUTH_TOKEN"
        assert token["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": key}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "set tokens.secret"),
        ({"tokens": TOKENS, "store": {"backend": "postgres"}}, "set store.uri"),
        ({"tokens": TOKENS, "store": {"ingress": {"enabled": True}}}, "set store.ingress.host"),
        ({"tokens": {"secret": "s"}, "runners": {"enabled": True}}, "set tokens.runner"),
    ],
)
def test_what_is_missing_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError, match=message):
        render(values)


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"replicas": 2}},
        {"store": {"backend": "nothing"}},
        {"proxy": {"enabled": True}},
        {"strategy": {"enable": True}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema({"tokens": TOKENS, **values})


def test_agl_knows_the_arguments_of_every_container() -> None:
    for values in ({"tokens": TOKENS}, EVERYTHING):
        for name, manifest in render(values).items():
            if not name.startswith("Deployment/"):
                continue
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            command, *arguments = container["args"]
            with COMMANDS[command].make_context(command, arguments) as context:
                assert context.params


def test_a_run_may_do_what_the_strategy_does() -> None:
    rules = render(EVERYTHING)["Role/agl-run"]["rules"]
    allowed = {
        (verb, kind) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]
    }
    assert allowed == permissions()
