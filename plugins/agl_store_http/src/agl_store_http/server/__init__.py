"""The store's API as an ASGI app, and the server that runs it."""
