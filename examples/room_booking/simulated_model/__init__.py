"""A SIMULATED model: rules and dice behind the OpenAI chat protocol, not a language model.

It replaces a real model where there is no key and no network, so that prompts can be improved in
the example, its tests and the tests of the prompt-search plugins. The simulated model

* books rooms by the rules in its **instructions** (:mod:`~simulated_model.booker`): it does not
  check what the system prompt does not mention;
* **criticises and edits** prompts on request (:mod:`~simulated_model.editor`), one or two rules at
  a time, and sometimes badly;
* uses only the text of the request; the tasks and their answers are unknown to it;
* gives equal answers to equal requests, for a given seed.

:mod:`~simulated_model.server` serves it; ``python -m simulated_model`` in this folder's parent runs
the server alone.
"""

from simulated_model.model import MODEL_NAME, SimulatedModel
from simulated_model.server import create_app, run_in_background

__all__ = ["MODEL_NAME", "SimulatedModel", "create_app", "run_in_background"]
