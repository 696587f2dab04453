"""The command ``agl store``."""
