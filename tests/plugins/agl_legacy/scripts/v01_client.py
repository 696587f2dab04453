"""A client of 0.1: an agent with the signature of 0.1, in worker processes, on a server's tasks."""

import os
import sys

from agentlightning import LitAgent, Trainer, configure_logger
from openai import OpenAI

logger = configure_logger()


class Namer(LitAgent):
    def training_rollout(self, task, rollout_id, resources):
        assert rollout_id.startswith("rollout-")
        with OpenAI() as client:
            answer = client.chat.completions.create(
                model="simulated",
                messages=[
                    {"role": "system", "content": resources["system_prompt"].template},
                    {"role": "user", "content": task["prompt"]},
                ],
            )
        return 1.0 / len((answer.choices[0].message.content or "").split())

    def on_rollout_end(self, task, rollout, runner, tracer):
        print("reward", rollout.final_reward, runner.worker_id, flush=True)


if __name__ == "__main__":
    trainer = Trainer(n_workers=int(sys.argv[1]), max_tasks=int(sys.argv[2]) or None)
    trainer.fit(Namer(), f"http://127.0.0.1:{os.environ['PORT']}")
    print("interrupted" if trainer.interrupted else "done")
