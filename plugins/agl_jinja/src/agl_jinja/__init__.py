"""The engine ``jinja`` of :class:`~agl_core.types.PromptTemplate`."""

from agl_jinja.engine import fill_jinja

__all__ = ["fill_jinja"]
