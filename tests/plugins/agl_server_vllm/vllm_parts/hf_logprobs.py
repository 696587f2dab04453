"""Log-probabilities of tokens by a Hugging Face forward pass, in float32.

Run by an interpreter that has transformers. Takes a JSON object per line, ``{"model": folder,
"adapter": folder or null, "rows": [{"prompt": [ids], "response": [ids]}]}``, and answers each with
a line: the log-probabilities of each row's response. A LoRA adapter is added to the weights:
W + alpha / r * B A.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def load(folder: str, adapter: str | None):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is not None:
        config = json.loads((Path(adapter) / "adapter_config.json").read_text())
        tensors = load_file(Path(adapter) / "adapter_model.safetensors")
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[name.replace("lora_A", "lora_B")]
            scale = config["lora_alpha"] / config["r"]
            model.get_submodule(module).weight.data += scale * (b @ tensors[name])
    return model


def logprobs_of(model, prompt: list[int], response: list[int]) -> list[float]:
    ids = torch.tensor([prompt + response])
    logprobs = model(ids).logits[0].log_softmax(-1)
    positions = torch.arange(len(prompt), ids.shape[1])
    return logprobs[positions - 1, ids[0, positions]].tolist()


torch.set_num_threads(1)
with torch.no_grad():
    for line in sys.stdin:
        asked = json.loads(line)
        model = load(asked["model"], asked["adapter"])
        found = [logprobs_of(model, row["prompt"], row["response"]) for row in asked["rows"]]
        print(json.dumps(found), flush=True)
