"""verl on a CPU, for development and tests only: a tiny model learns in minutes, without a GPU.

``trainer.device: cpu`` in VERL's config selects it. What differs from a GPU:

- :mod:`~agl_algo_verl.cpu.platform` tells verl that there is a device called ``cpu``;
- :mod:`~agl_algo_verl.cpu.workers` has verl's workers and FSDP engines talk through gloo;
- :mod:`~agl_algo_verl.cpu.rollout` serves the model with Hugging Face transformers instead of vLLM;
- :mod:`~agl_algo_verl.cpu.weights` sends weights to servers that have devices of their own;
- :mod:`~agl_algo_verl.cpu.settings` has the settings of verl that this needs.

Trainer, losses, checkpoints and the transfer of rows are verl's own, as on a GPU.
"""
