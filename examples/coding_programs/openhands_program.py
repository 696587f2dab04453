"""Starts the default agent of OpenHands' SDK, which has no command of its own.

``openhands_program.py MODEL URL KEY TASK``, run in the project's folder by the SDK's environment.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# The SDK needs Python 3.12 and an environment of its own.

from __future__ import annotations

import sys
from pathlib import Path

from openhands.sdk import LLM, Conversation
from openhands.tools.preset.default import get_default_agent


def main() -> None:
    model, base_url, key, task = sys.argv[1:]
    llm = LLM(usage_id="agent", model=f"openai/{model}", base_url=base_url, api_key=key)
    agent = get_default_agent(llm=llm, cli_mode=True)
    conversation = Conversation(agent=agent, workspace=str(Path.cwd()))
    conversation.send_message(task)
    conversation.run()


if __name__ == "__main__":
    main()
