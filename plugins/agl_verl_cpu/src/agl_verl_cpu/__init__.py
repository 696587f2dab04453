"""verl on a CPU, for development and tests only: a tiny model learns in minutes, without a GPU.

``trainer.device: cpu`` in VERL's config selects it. These modules replace what needs a GPU:

- :mod:`~agl_verl_cpu.platform` registers the device ``cpu`` with verl;
- :mod:`~agl_verl_cpu.workers` makes verl's workers and FSDP engines communicate through gloo;
- :mod:`~agl_verl_cpu.rollout` serves the model with Hugging Face transformers instead of vLLM;
- :mod:`~agl_verl_cpu.weights` sends weights to servers on separate devices;
- :mod:`~agl_verl_cpu.fork_server` starts Ray's workers without importing PyTorch in each;
- :mod:`~agl_verl_cpu.settings` holds the settings of verl that this needs.

Trainer, losses, checkpoints and the transfer of rows are verl's own, as on a GPU.
"""
