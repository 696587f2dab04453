"""An environment whose reward function raises."""

import verifiers.v1 as vf


class FailingTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def broken(self, trace) -> float:
        raise LookupError("no answer\nin this row")


class FailingTaskset(vf.Taskset[FailingTask, vf.TasksetConfig]):
    def load(self):
        return [FailingTask(vf.TaskData(prompt="Go."), self.config.task)]


__all__ = ["FailingTaskset"]
