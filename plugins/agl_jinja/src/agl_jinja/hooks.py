"""Registers the engine ``jinja`` of prompt templates."""

from agl_core.plugins import TemplateEngineSpec, hookimpl


@hookimpl
def agl_template_engine() -> TemplateEngineSpec:
    return TemplateEngineSpec(
        "jinja",
        fill="agl_jinja:fill_jinja",
        summary="Jinja in a sandbox that bounds memory and time",
        api=1,
    )
