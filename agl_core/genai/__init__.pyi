from ._attributes import (
    input_messages as input_messages,
    output_messages as output_messages,
    request_attributes as request_attributes,
    response_attributes as response_attributes,
    usage_attributes as usage_attributes,
    without_secrets as without_secrets,
)
from ._errors import (
    MALFORMED as MALFORMED,
    CodecError as CodecError,
)
from ._extra import (
    NO_EXTRA_FIELDS as NO_EXTRA_FIELDS,
    ExtraFields as ExtraFields,
)
from ._protocols import (
    PROTOCOLS as PROTOCOLS,
    ModelProtocol as ModelProtocol,
    Protocol as Protocol,
    Route as Route,
    get_protocol as get_protocol,
    parse_path as parse_path,
)
from ._streams import (
    Assembler as Assembler,
    StreamTranslator as StreamTranslator,
)
from ._translation import (
    can_translate as can_translate,
    lost_in_request as lost_in_request,
    lost_in_response as lost_in_response,
    response_events as response_events,
    stream_translator as stream_translator,
    translate_request as translate_request,
    translate_response as translate_response,
)
from ._turns import fold_after_results as fold_after_results
from ._wire import (
    DONE as DONE,
    Json as Json,
    ServerSentEvent as ServerSentEvent,
    SseSplitter as SseSplitter,
    dumps as dumps,
    event_bytes as event_bytes,
    loads as loads,
    named_event as named_event,
)
