"""A task server of 0.1: tries prompts, one task each, and reads the rollouts that clients post."""

import asyncio
import os

from agentlightning.server import AgentLightningServer
from agentlightning.types import NamedResources, PromptTemplate


async def main() -> None:
    server = AgentLightningServer(host="127.0.0.1", port=int(os.environ["PORT"]))
    await server.start()
    for text in ("Be brief.", "Be kind."):
        resources: NamedResources = {
            "system_prompt": PromptTemplate(template=text, engine="f-string")
        }
        resources_id = await server.update_resources(resources)
        task_id = await server.queue_task(
            sample={"prompt": "What is a good name?"}, mode="train", resources_id=resources_id
        )
        rollout = await server.poll_completed_rollout(task_id, timeout=60)
        assert rollout is not None
        assert rollout.task is not None
        calls = [triplet.metadata["request"]["model"] for triplet in rollout.triplets or []]
        print(text, rollout.final_reward, calls, rollout.task.num_claims, flush=True)
    ids = [await server.queue_task({"prompt": str(n)}, mode="val") for n in range(3)]
    while len(ids) > 0:
        for rollout in await server.retrieve_completed_rollouts():
            ids.remove(rollout.rollout_id)
        await asyncio.sleep(0.05)
    print(await server.get_completed_rollout("rollout-unknown"))
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
