from .budget import (
    Budget as Budget,
    Price as Price,
    Spending as Spending,
)
from .chat import (
    ChatClient as ChatClient,
    ChatReply as ChatReply,
    ask_model as ask_model,
)
from .config import SearchConfig as SearchConfig
from .experiments import (
    ConversationCheck as ConversationCheck,
    Experiment as Experiment,
    describe as describe,
)
from .model_calls import MeteredModel as MeteredModel
from .prompt_files import PromptFiles as PromptFiles
from .replies import without_thoughts as without_thoughts
from .report import (
    Reporter as Reporter,
    write_files as write_files,
)
from .search import (
    Snapshots as Snapshots,
    check_client as check_client,
    fingerprint as fingerprint,
    limits_of as limits_of,
    open_client as open_client,
    prompt_templates as prompt_templates,
    require_messages as require_messages,
    require_tasks as require_tasks,
    require_use as require_use,
)
from .state import (
    Candidate as Candidate,
    CurvePoint as CurvePoint,
    SearchState as SearchState,
)
from .templates import (
    EditRules as EditRules,
    find_mistake as find_mistake,
    placeholders as placeholders,
)
from .what_if import (
    Subject as Subject,
    WhatIf as WhatIf,
)
