"""A SIMULATED model: rules and dice behind the OpenAI chat protocol, not a language model.

It stands in for a model where there is no key and no network, so that the example, its tests and
the prompt-search plugins have something to improve prompts on. It

* books rooms only as well as its **instructions** tell it to (:mod:`~simulated_model.booker`): what
  the system prompt does not mention, it does not check;
* **criticises and edits** prompts when asked to (:mod:`~simulated_model.editor`), an aspect or two
  at a time, and not always well;
* reads nothing but the request it is sent; it knows neither the tasks nor their answers;
* answers equal requests equally, for a given seed.

:mod:`~simulated_model.server` serves it; ``python -m simulated_model`` in this folder's parent runs
it alone.
"""

from simulated_model.model import MODEL_NAME, SimulatedModel
from simulated_model.server import create_app, run_in_background

__all__ = ["MODEL_NAME", "SimulatedModel", "create_app", "run_in_background"]
