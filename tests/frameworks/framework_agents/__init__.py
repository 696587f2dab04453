"""One small agent per framework; it answers a question about the weather with a tool.

Each module has the same interface:

* ``NAME``: name of the framework; ``NEEDS``: its distributions.
* ``PROTOCOL``: ``"openai"`` or ``"anthropic"``, the protocol of the agent's model calls.
* ``AGENT``: the agent's name in the framework, None if the framework has no agents.
* ``async ask(url, city)``: run the agent once; ``url`` is the root of the model server.
"""
