"""Sums to compute with a tool, scored by two reward functions; verifiers runs the tool's server."""

import verifiers.v1 as vf


class Adder(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "math"

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, SumConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(config.tools)]

    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace) -> float:
        return float(len(trace.last_reply) < 20)


class AddingConfig(vf.TasksetConfig):
    rows: int = 5
    task: SumConfig = SumConfig()


class AddingTaskset(vf.Taskset[SumTask, AddingConfig]):
    def load(self):
        return [
            SumTask(
                SumData(prompt=f"{i} + 2?", system_prompt="Add.", answer=str(i + 2)),
                self.config.task,
            )
            for i in range(self.config.rows)
        ]


__all__ = ["AddingTaskset"]

if __name__ == "__main__":
    Adder.run()
