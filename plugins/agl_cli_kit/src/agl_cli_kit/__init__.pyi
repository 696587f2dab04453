from .kinds import kind_option as kind_option
from .logs import (
    configure_logger as configure_logger,
    error_console as error_console,
    setup_logging as setup_logging,
    setup_module_logging as setup_module_logging,
)
from .output import (
    in_terminal as in_terminal,
    print_json as print_json,
    print_table as print_table,
)
from .program import main as main
from .stores import (
    open_store as open_store,
    readable_store as readable_store,
    store_options as store_options,
)
