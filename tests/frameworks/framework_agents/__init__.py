"""One small agent per framework: asked for the weather in a city, it calls a tool and answers.

Each module has the same face:

* ``NAME``: what the framework is called; ``NEEDS``: its distributions.
* ``PROTOCOL``: ``"openai"`` or ``"anthropic"``, what the agent speaks to its model.
* ``AGENT``: the name the framework gives the agent, None where it knows no agents.
* ``async ask(url, city)``: run the agent once; ``url`` is the root of the model server.
"""
