"""Tunable resources, which algorithms improve and agents receive.

The ``resource_type`` of a resource names its class. Users add classes with
:func:`register_resource_type`. Plugins add them with the hook ``agl_resource``, which is called
when a process first decodes a resource of that type. A type that no plugin provides is kept as an
:class:`OpaqueResource`; the snapshot stays readable.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from agl_core.errors import MissingDependencyError
from agl_core.types._rollout import AttemptedRollout
from agl_core.types._templates import fill_fields

logger = logging.getLogger(__name__)


def _caller() -> str:
    """Return the name of the function that called the caller of this one."""
    return sys._getframe(2).f_code.co_name  # pyright: ignore[reportPrivateUsage]


class Resource(BaseModel):
    """Base of all resources.

    A subclass fixes ``resource_type`` to a string constant::

        @register_resource_type
        class Adapter(Resource):
            resource_type: Literal["adapter"] = "adapter"
            path: str
    """

    resource_type: Any


R = TypeVar("R", bound=type[Resource])
_types: dict[str, type[Resource]] = {}


def register_resource_type(cls: R) -> R:
    """Register a :class:`Resource` subclass under the default of its ``resource_type``.

    Usable as a class decorator. Registering the same class again changes nothing. Not thread-safe:
    register at import time.

    Raises:
        ValueError: The class has no string default for ``resource_type``, or another class is
            registered under it.
    """
    name = cls.model_fields["resource_type"].default
    if not isinstance(name, str) or not name:
        raise ValueError(f"{cls.__qualname__} needs a string default for its resource_type")
    known = _types.setdefault(name, cls)
    if known is not cls and known.__qualname__ != cls.__qualname__:
        raise ValueError(f"resource_type {name!r} already belongs to {known.__qualname__}")
    _types[name] = cls
    return cls


def resource_types() -> dict[str, type[Resource]]:
    """Return a dict of all resource classes by their ``resource_type``.

    It includes the built-in classes, the registered ones, and those of installed plugins.
    """
    _ask_plugins(None)
    return dict(_types)


def _ask_plugins(name: str | None) -> None:
    """Let the registry register a resource type that a plugin provides, or all of them."""
    # Decoding knows the name first; the import upwards is one of two that the layers allow.
    from agl_core.plugins import load_resource_type

    load_resource_type(name)


class OpaqueResource(Resource):
    """A resource whose type this process does not know; every field is kept."""

    model_config = ConfigDict(extra="allow")

    resource_type: str


@register_resource_type
class LLM(Resource):
    """A model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    """Base URL, as an OpenAI client takes it."""
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)

    def get_base_url(self, *args: Any, **kwargs: Any) -> str:
        """Return the endpoint; arguments are ignored, so callers may always pass the ids."""
        return self.endpoint


@register_resource_type
class ProxyLLM(LLM):
    """A model behind a proxy, which assigns each call to the rollout and attempt in its URL."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __getattribute__(self, name: str) -> Any:
        # The plain endpoint has no ids in its path, so the proxy cannot assign calls to a rollout.
        if name == "endpoint" and _caller() != "get_base_url":
            logger.warning(
                "ProxyLLM.endpoint was read directly: calls made to it belong to no rollout; "
                "use get_base_url(rollout_id, attempt_id)"
            )
        return super().__getattribute__(name)

    def get_base_url(
        self, rollout_id: str | None = None, attempt_id: str | None = None, *_: Any, **__: Any
    ) -> str:
        """Return the endpoint with the ids of rollout and attempt in its path.

        Args:
            rollout_id: Rollout to which the proxy assigns the calls; if both ids are None, the
                endpoint is returned unchanged.
            attempt_id: Attempt to which the proxy assigns the calls.

        Raises:
            ValueError: Only one of the ids is given, or one is not a string.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if not isinstance(rollout_id, str) or not isinstance(attempt_id, str):
            raise ValueError("get_base_url takes both rollout_id and attempt_id, or neither")
        base = self.endpoint.removesuffix("/")
        root = base.removesuffix("/v1")
        version = "/v1" if root != base else ""
        return f"{root}/rollout/{rollout_id}/attempt/{attempt_id}{version}"

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """Return a plain :class:`LLM` whose endpoint has the ids of this attempt in its path."""
        return LLM(
            endpoint=self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=self.sampling_parameters,
        )


_ENGINES: Final = ("f-string", "jinja", "poml")
"""The engines of the wire format, which a template may name without a plugin."""
_STORED: Final = {"agl_stored": True}
"""Context of the validation of what a store holds or a request brings."""


def _check_engine(name: str, info: ValidationInfo) -> str:
    """Refuse an engine that is not known here.

    Not in a stored resource: a store or a dashboard may lack the plugin, and must keep the snapshot
    readable.
    """
    if name in _ENGINES or info.context == _STORED:
        return name
    from agl_core.plugins import did_you_mean, get_registry

    installed = (record.name for record in get_registry().of_kind("template_engine"))
    known = list(dict.fromkeys((*_ENGINES, *installed)))
    if name in known:
        return name
    guess = did_you_mean(name, known)
    raise PydanticCustomError(
        "template_engine",
        "there is no template engine {name}{guess} (engines: {known})",
        {"name": repr(name), "guess": guess, "known": ", ".join(known)},
    )


@register_resource_type
class PromptTemplate(Resource):
    """A prompt with placeholders."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Annotated[str, Field(examples=list(_ENGINES)), AfterValidator(_check_engine)]

    def format(self, **kwargs: Any) -> str:
        """Fill the placeholders.

        ``f-string`` is :meth:`str.format` without access to attributes; ``poml`` needs the ``poml``
        package and joins the text of its messages; ``jinja`` and any other engine needs a plugin
        of the kind ``template_engine``.

        Raises:
            KeyError: An f-string placeholder has no value.
            InvalidArgumentError: An f-string placeholder reads an attribute, or the template is
                malformed or too large.
            MissingDependencyError: The package ``poml`` is not installed.
            PluginError: No plugin provides the engine.
        """
        if self.engine == "f-string":
            return fill_fields(self.template, kwargs)
        if self.engine != "poml":
            from agl_core.plugins import template_engine

            return template_engine(self.engine)(self.template, kwargs)
        try:
            poml: Any = importlib.import_module("poml")
        except ImportError as error:
            raise MissingDependencyError("the poml prompt engine", pip="poml") from error
        messages: str | list[dict[str, Any]] = poml.poml(self.template, context=kwargs, chat=False)
        if isinstance(messages, str):
            return messages
        return "\n".join(str(message["content"]) for message in messages)


@register_resource_type
class Checkpoint(Resource):
    """Progress of a run (:class:`agl_core.algorithm.Run`); agents do not receive it."""

    resource_type: Literal["checkpoint"] = "checkpoint"
    state: Any = None
    """The state from which the algorithm resumes, any JSON value."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The last value of each metric."""
    finished: bool = False
    resources_id: str | None = None
    """Id of the resources that a finished run produced."""


class _AnyResource:
    """Annotation that decodes by ``resource_type`` and documents the known types."""

    @staticmethod
    def decode(value: Any, _: ValidationInfo) -> Resource:
        if isinstance(value, Resource):
            return value
        name: Any = None
        if isinstance(value, dict):
            name = cast("dict[str, Any]", value).get("resource_type")
        if not isinstance(name, str):
            raise PydanticCustomError(
                "resource_type", "a resource needs a string under the key 'resource_type'"
            )
        if name not in _types:
            _ask_plugins(name)
        return _types.get(name, OpaqueResource).model_validate(value, context=_STORED)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        del schema
        options = [
            handler(known.__pydantic_core_schema__)
            for known in [*resource_types().values(), OpaqueResource]
        ]
        return {"anyOf": options}


ResourceUnion = Annotated[
    SerializeAsAny[Resource], BeforeValidator(_AnyResource.decode), _AnyResource
]
"""Any resource, decoded by its ``resource_type``."""

NamedResources = dict[str, ResourceUnion]
"""Resources by name. The order matters: agents receive the first of the type they ask for."""


def becomes_latest(resources: NamedResources) -> bool:
    """Return whether a stored snapshot becomes the latest; one with a checkpoint does not.

    So the state of a run, and what a search tries out, reaches nobody who asks for the latest.
    """
    return not any(isinstance(resource, Checkpoint) for resource in resources.values())


class ResourcesUpdate(BaseModel):
    """A versioned snapshot of resources."""

    resources_id: str
    create_time: float
    update_time: float
    version: int
    resources: NamedResources
