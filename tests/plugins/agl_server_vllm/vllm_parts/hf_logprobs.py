"""Log-probabilities of tokens by a Hugging Face forward pass, in float32.

Run by an interpreter that has transformers: ``hf_logprobs.py MODEL < ROWS > ROWS``, where a row is
``{"prompt": [ids], "response": [ids]}`` and comes back as a list of log-probabilities.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
found = []
with torch.no_grad():
    for row in json.load(sys.stdin):
        start = len(row["prompt"])
        ids = torch.tensor([row["prompt"] + row["response"]])
        logprobs = model(ids).logits[0].log_softmax(-1)
        positions = torch.arange(start, ids.shape[1])
        found.append(logprobs[positions - 1, ids[0, positions]].tolist())
json.dump(found, sys.stdout)
