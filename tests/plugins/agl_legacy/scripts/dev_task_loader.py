"""DevTaskLoader: an agent on local tasks, without a server."""

from agentlightning import DevTaskLoader, LitAgent, Trainer
from agentlightning.types import LLM, NamedResources, Rollout, Triplet


class Adder(LitAgent):
    async def training_rollout_async(self, task, rollout_id, resources):
        assert resources["main_llm"].model == "simulated"
        if task["a"] is None:
            raise ValueError("nothing to add")
        return [
            Triplet(prompt="p", response=str(task["a"] + task["b"]), reward=0.25),
            Triplet(prompt="q", response="done", reward=0.75),
        ]


class New(LitAgent):
    def rollout(self, task, resources: NamedResources, rollout: Rollout) -> float:
        return float(rollout.input["a"])


def loader() -> DevTaskLoader:
    return DevTaskLoader(
        tasks=[{"a": 1, "b": 2}, {"a": None, "b": 0}],
        resources={"main_llm": LLM(endpoint="http://127.0.0.1:9/v1", model="simulated")},
    )


if __name__ == "__main__":
    tasks = loader()
    Trainer(n_workers=1, dev=True, max_tasks=3).fit(Adder(), "http://127.0.0.1:9", dev_data=tasks)
    for rollout in tasks.rollouts:
        answers = [triplet.response for triplet in rollout.triplets or []]
        print(rollout.rollout_id, rollout.final_reward, answers, sorted(rollout.metadata))
    again = DevTaskLoader([{"a": 5}], resources=tasks.get_latest_resources())
    Trainer().fit(New(), again)
    print([rollout.final_reward for rollout in again.rollouts])
