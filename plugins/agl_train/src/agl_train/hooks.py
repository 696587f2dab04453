"""Hooks of the train files: the commands ``agl train`` and ``agl eval``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="compare",
            target="agl_train.compare_command:compare",
            summary="Compare two evaluations in a store, task by task",
            api=1,
        ),
        CommandSpec(
            name="eval",
            target="agl_train.eval_command:evaluate",
            summary="Score the agent that a file describes, changing nothing",
            api=1,
        ),
        CommandSpec(
            name="train",
            target="agl_train.train_command:train",
            summary="Train the agent that a file describes",
            api=1,
        ),
    ]
