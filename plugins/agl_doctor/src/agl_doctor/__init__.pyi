from .checks import (
    check_plugins as check_plugins,
    run_plugin_checks as run_plugin_checks,
    run_store_checks as run_store_checks,
)
from .environment import check_environment as check_environment
