"""LLM servers that are wrong in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

from agl_core.errors import LLMServerError
from agl_core.llm_server import LLMServer
from agl_scripted import Reply, ScriptedModels


class Base(LLMServer):
    """A correct server: answers from the file of its weights."""

    CAUGHT_BY = ""
    listed = ("policy",)

    def __init__(self) -> None:
        self._text = "I do not know."
        self._version = "0"
        self._models: ScriptedModels | None = None

    @property
    def model(self):
        return "policy"

    @property
    def model_version(self):
        return self._version

    @property
    def base_url(self):
        return self._running().base_url

    def _running(self):
        if self._models is None:
            raise LLMServerError("it does not run")
        return self._models

    def is_running(self):
        return self._models is not None

    def _answer(self, seen):
        if seen.body["model"] != self.model:
            return Reply(error_status=404)
        return Reply(self._text)

    async def start(self):
        if self._models is not None:
            raise LLMServerError("it runs already")
        self._models = ScriptedModels(self._answer, models=self.listed)
        self._models.__enter__()

    async def stop(self):
        models, self._models = self._models, None
        if models is not None:
            await asyncio.to_thread(models.__exit__, None, None, None)

    async def update_weights(self, path, *, version):
        self._running()
        try:
            self._text = Path(path).read_text()
        except OSError as error:
            raise LLMServerError(f"{path} holds no weights") from error
        self._version = version


class StartsTooSoon(Base):
    CAUGHT_BY = "test_it_answers_from_start_to_stop_and_again"

    async def start(self):
        self._models = ScriptedModels(self._answer)
        self._models.port = 9  # a port without a server
        self._starting = asyncio.create_task(self._start_later())

    async def _start_later(self):
        await asyncio.sleep(1)
        self._models = None
        await super().start()

    async def stop(self):
        self._starting.cancel()
        self._models = None


class KeepsItsPort(Base):
    CAUGHT_BY = "test_it_leaves_its_port_when_it_stops"
    kept: ScriptedModels | None = None

    async def stop(self):
        # The serving threads end with the process.
        type(self).kept, self._models = self._models, None


class LeavesItsWorkers(Base):
    CAUGHT_BY = "test_it_leaves_no_process_behind"

    async def start(self):
        await super().start()
        # The worker ends by itself, long after the test.
        command = ["sh", "-c", "sleep 60 >&2 & echo; wait"]
        self._front = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._front.stdout is not None
        self._front.stdout.readline()

    async def stop(self):
        if self.is_running():
            self._front.kill()
            self._front.communicate()
        await super().stop()


class StopsOnlyOnce(Base):
    CAUGHT_BY = "test_a_second_stop_does_nothing"

    async def stop(self):
        self._running()
        await super().stop()


class StartsAgain(Base):
    CAUGHT_BY = "test_a_second_start_is_refused"

    async def start(self):
        await self.stop()
        await super().start()


class KnowsItsUrlTooSoon(Base):
    CAUGHT_BY = "test_the_url_is_known_while_it_runs"

    @property
    def base_url(self):
        return self._models.base_url if self._models else "http://127.0.0.1:8000/v1"


class ListsNothing(Base):
    CAUGHT_BY = "test_it_lists_its_model"
    listed = ()


class AnswersToAnyName(Base):
    CAUGHT_BY = "test_an_unknown_model_is_refused"

    def _answer(self, seen):
        return Reply(self._text)


class RunsOnAfterAnError(Base):
    CAUGHT_BY = "test_an_error_in_its_context_stops_it"

    async def __aexit__(self, kind, error, traceback):
        if kind is None:
            await self.stop()


class GivesNoTokenIds(Base):
    CAUGHT_BY = "test_token_ids_come_when_asked_for"

    def _answer(self, seen):
        seen.body.pop("return_token_ids", None)
        return super()._answer(seen)


class KeepsTheOldWeights(Base):
    CAUGHT_BY = "test_new_weights_answer_every_call_after_the_update"

    async def update_weights(self, path, *, version):
        self._running()
        self._version = version


class ForgetsTheVersion(Base):
    CAUGHT_BY = "test_new_weights_answer_every_call_after_the_update"

    async def update_weights(self, path, *, version):
        await super().update_weights(path, version=self._version)


class KeepsTheVersionOfTheLastStart(Base):
    CAUGHT_BY = "test_the_version_after_a_restart_is_that_of_the_weights"

    async def start(self):
        self._text = "I do not know."
        await super().start()


class LosesTheOldWeights(Base):
    CAUGHT_BY = "test_bad_weights_are_refused_and_the_old_ones_stay"

    async def update_weights(self, path, *, version):
        self._text = ""
        await super().update_weights(path, version=version)


class TakesAnythingForWeights(Base):
    CAUGHT_BY = "test_bad_weights_are_refused_and_the_old_ones_stay"

    async def update_weights(self, path, *, version):
        with contextlib.suppress(LLMServerError):
            await super().update_weights(path, version=version)


class UpdatesWhileItIsDown(Base):
    CAUGHT_BY = "test_weights_need_a_running_server"

    async def update_weights(self, path, *, version):
        self._text, self._version = Path(path).read_text(), version
