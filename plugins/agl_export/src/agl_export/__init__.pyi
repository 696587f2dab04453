from .atif import (
    AtifOptions as AtifOptions,
    atif_documents as atif_documents,
    atif_rows as atif_rows,
)
from .atif_reader import graph_of_atif as graph_of_atif
from .dpo import (
    DpoOptions as DpoOptions,
    dpo_rows as dpo_rows,
)
from .files import (
    read_rows as read_rows,
    writing_rows as writing_rows,
)
from .report import (
    ExportReport as ExportReport,
    Skip as Skip,
)
from .rl import (
    RlOptions as RlOptions,
    rl_rows as rl_rows,
)
from .run import (
    Selection as Selection,
    Split as Split,
    export_dataset as export_dataset,
)
from .samples import (
    Sample as Sample,
    conversations as conversations,
    task_key as task_key,
    trajectories as trajectories,
)
from .sft import (
    SftOptions as SftOptions,
    sft_rows as sft_rows,
)
