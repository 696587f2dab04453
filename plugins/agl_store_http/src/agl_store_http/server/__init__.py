"""The store's API as an ASGI app, and the server that runs it.

A request comes in by one of two :mod:`~agl_store_http.server.doors`, brings one of the
:mod:`~agl_store_http.server.bodies`, reaches an endpoint of :mod:`~agl_store_http.server.api`, and
gets one of the :mod:`~agl_store_http.server.replies`.
"""
