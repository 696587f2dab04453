from .constructors import lightning_cli as lightning_cli
from .datasets import load_dataset as load_dataset
from .file import (
    TrainPlan as TrainPlan,
    read_train_file as read_train_file,
)
from .keys import TrainFile as TrainFile
from .references import import_reference as import_reference
from .runs import (
    INTERRUPTED as INTERRUPTED,
    blame as blame,
    price_option as price_option,
    run_options as run_options,
    set_up_logging as set_up_logging,
    stopped_by_signals as stopped_by_signals,
)
from .spending import Spending as Spending
from .train_command import train as train
