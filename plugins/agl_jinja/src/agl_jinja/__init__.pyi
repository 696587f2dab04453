from .engine import (
    fill_jinja as fill_jinja,
)
