"""agl: train any AI agent."""

__version__ = "0.1.0"
