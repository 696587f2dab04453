"""The two ways in: FastAPI's table of routes, and the short way of the hot ones.

Both call the same endpoints, and both are measured. Apps of plugins are mounted beside them.
"""
