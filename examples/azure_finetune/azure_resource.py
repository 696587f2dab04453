"""An Azure OpenAI resource: fine-tuning with the SDK, deployments with the management API.

The environment variables below select a real resource; without them the fake of this folder serves.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from openai import AzureOpenAI

from fake_azure import BASE_MODEL, FakeAzure, serving
from mail_agent import guess

__all__ = ["Resource", "connected"]

_API_VERSION = "2024-10-21"
_MANAGEMENT_VERSION = "2024-10-01"
_SECONDS = 6 * 3600  # a real job waits in a queue and then trains for up to hours


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource and the ways into it.

    Attributes:
        endpoint: URL of the resource, for models and fine-tuning.
        key: Its key.
        management: URL of the resource in the management API.
        token: Returns a token of the management API. It is called for each request, since a token
            is valid for about an hour and a job may take longer.
        model: The model to fine-tune.
        poll_seconds: Seconds between two looks at a job or a deployment.
    """

    endpoint: str
    key: str
    management: str
    token: Callable[[], str]
    model: str
    poll_seconds: float

    def client(self) -> AzureOpenAI:
        """Return a client of the resource; the caller closes it."""
        return AzureOpenAI(azure_endpoint=self.endpoint, api_key=self.key, api_version=_API_VERSION)

    def fine_tune(self, rows: Sequence[dict[str, Any]]) -> str:
        """Upload chats, fine-tune the model on them, and return the new model's name.

        Raises:
            RuntimeError: The job failed, or did not end.
        """
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with self.client() as client:
            file = client.files.create(file=("train.jsonl", data), purpose="fine-tune")
            job = client.fine_tuning.jobs.create(model=self.model, training_file=file.id)
            _tell(f"fine-tuning job {job.id}")
            for _ in self._looks(f"job {job.id}"):
                job = client.fine_tuning.jobs.retrieve(job.id)
                if job.status in ("failed", "cancelled"):
                    raise RuntimeError(f"job {job.id} is {job.status}: {job.error}")
                if job.status == "succeeded" and job.fine_tuned_model:
                    break
        assert job.fine_tuned_model is not None
        _tell(f"fine-tuned model {job.fine_tuned_model}")
        return job.fine_tuned_model

    @contextmanager
    def deployed(self, model: str) -> Iterator[str]:
        """Deploy a model under a new name, yield the name, and remove the deployment.

        Raises:
            RuntimeError: The deployment failed, or did not end.
        """
        name = f"tuned-{secrets.token_hex(3)}"
        _tell(f"deployment {name} of {model}")
        try:
            self.deploy(name, model)
            yield name
        finally:
            self.remove(name)

    def deploy(self, name: str, model: str) -> None:
        """Deploy a model under a name and return when it serves.

        Raises:
            RuntimeError: The deployment failed, or did not end.
        """
        properties = {"model": {"format": "OpenAI", "name": model, "version": "1"}}
        body = {"sku": {"name": "standard", "capacity": 1}, "properties": properties}
        self._manage("PUT", name, body)
        for _ in self._looks(f"deployment {name}"):
            state = self.state(name)
            if state in ("Failed", "Canceled"):
                raise RuntimeError(f"deployment {name} is {state}")
            if state == "Succeeded":
                return

    def state(self, name: str) -> str:
        """Return the state of a deployment."""
        return self._manage("GET", name)["properties"]["provisioningState"]

    def remove(self, name: str) -> None:
        """Remove a deployment, which costs money for each hour, if there is one."""
        try:
            self._manage("DELETE", name)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def _manage(self, method: str, name: str, body: Any = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.management}/deployments/{name}?api-version={_MANAGEMENT_VERSION}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self.token()}", "content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read() or b"{}")

    def _looks(self, what: str) -> Iterator[None]:
        """Yield until the caller has seen the end; the API has no way to wait for it."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            yield
            time.sleep(self.poll_seconds)
        raise RuntimeError(f"{what} did not end within {_SECONDS} s")


@contextmanager
def connected() -> Iterator[tuple[Resource, str]]:
    """Yield the resource, and the name of a deployment of the base model."""
    endpoint = os.environ.get("AZURE_OPENAI_ENDPOINT")
    if endpoint:
        host = os.environ.get("AZURE_MANAGEMENT_URL", "https://management.azure.com")
        resource = Resource(
            endpoint,
            os.environ["AZURE_OPENAI_API_KEY"],
            host + os.environ["AZURE_RESOURCE_ID"],
            _token,
            os.environ.get("AZURE_BASE_MODEL", BASE_MODEL),
            poll_seconds=30,
        )
        base = os.environ["AZURE_OPENAI_DEPLOYMENT"]
        resource.state(base)  # fails here, and not after the tuning, if the rights are missing
        yield resource, base
        return
    with serving(FakeAzure(guess)) as url:
        path = "/subscriptions/s/resourceGroups/g/providers/Microsoft.CognitiveServices/accounts/a"
        fake = Resource(url, "key", url + path, lambda: "token", BASE_MODEL, poll_seconds=0.01)
        fake.deploy("base", BASE_MODEL)
        yield fake, "base"


def _token() -> str:
    """Return a token of the Azure CLI, which renews it when it ends."""
    command = ["az", "account", "get-access-token", "--query", "accessToken", "-o", "tsv"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _tell(what: str) -> None:
    """Print what now exists at Azure, for a run that ends early."""
    print(what, file=sys.stderr, flush=True)
