"""A game of several turns: the environment answers each guess until the number is found."""

import itertools

import verifiers.v1 as vf


class NumberData(vf.TaskData):
    number: int


class NumberTask(vf.Task[NumberData]):
    pass


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[GuessingConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for turns in itertools.count(1):
                if segment.terminated:
                    break
                guess = int(segment.last_reply)
                if guess == task.data.number:
                    interaction.trace.record_reward("found", 1 / turns, 1.0)
                    break
                answer = "higher" if guess < task.data.number else "lower"
                segment = await interaction.turn(answer)


class GuessingTaskset(vf.Taskset[NumberTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count(5):
            yield NumberTask(NumberData(prompt="Guess.", number=number), self.config.task)


__all__ = ["GuessingEnv", "GuessingTaskset"]
