from .call_writer import (
    CallWriter as CallWriter,
    read_body as read_body,
)
from .config import OtelTracerConfig as OtelTracerConfig
from .current import (
    EnteredSpan as EnteredSpan,
    enter_span as enter_span,
    live_context as live_context,
)
from .exporter import silent_context as silent_context
from .imports import on_import as on_import
from .instrument import (
    InstrumentationReport as InstrumentationReport,
    Instrumentor as Instrumentor,
    acquire_instrumentor as acquire_instrumentor,
    release_instrumentor as release_instrumentor,
)
from .later import set_attributes_later as set_attributes_later
from .payload import to_jsonable as to_jsonable
from .processor import current_recording as current_recording
from .provider import (
    get_tracer as get_tracer,
    get_tracer_provider as get_tracer_provider,
)
from .tracer import OtelTracer as OtelTracer
