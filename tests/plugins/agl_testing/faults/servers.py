"""Faults of model servers."""

from __future__ import annotations

import asyncio
import contextlib

from wrong.servers import Base

from agl_core.errors import LLMServerError
from agl_scripted import Reply


class Server(Base):
    SUITE, FIXTURE, FLAGS = "LLMServerSuite", "server", ("weights", "token_ids")
    MORE = """
    @pytest.fixture
    def new_weights(self, tmp_path):
        (tmp_path / "weights").write_text("Fine.")
        return tmp_path / "weights"
"""
    CAUGHT_BY = ""


GOOD = (Server,)


class KeepsItsOldWeights(Server):
    """It says the new version and answers with the old weights."""

    CAUGHT_BY = "test_new_weights_answer_every_call_after_the_update"

    async def update_weights(self, path, *, version):
        text = self._text
        await super().update_weights(path, version=version)
        self._text = text


class HidesBadWeights(Server):
    """Weights that cannot be read leave everything as it was, without an error."""

    CAUGHT_BY = "test_bad_weights_are_refused_and_the_old_ones_stay"

    async def update_weights(self, path, *, version):
        self._running()
        with contextlib.suppress(LLMServerError):
            await super().update_weights(path, version=version)


class TurnsErrorsIntoAnother(Server):
    """Weights that cannot be read are a KeyError."""

    CAUGHT_BY = "test_bad_weights_are_refused_and_the_old_ones_stay"

    async def update_weights(self, path, *, version):
        self._running()
        try:
            await super().update_weights(path, version=version)
        except LLMServerError:
            raise KeyError(str(path)) from None


class ForgetsItsVersion(Server):
    """The version stays that of the start."""

    CAUGHT_BY = "test_new_weights_answer_every_call_after_the_update"

    @property
    def model_version(self):
        return "0"


class AnswersForAnyModel(Server):
    """It answers for a model that it does not have."""

    CAUGHT_BY = "test_an_unknown_model_is_refused"

    def _answer(self, seen):
        return Reply(self._text)


class AnswersNothing(Server):
    """Every answer is empty."""

    CAUGHT_BY = "test_token_ids_come_when_asked_for"

    def _answer(self, seen):
        if seen.body["model"] != self.model:
            return Reply(error_status=404)
        return Reply("")


class SwallowsSystemExit(Server):
    """`sys.exit` in its context does not leave it."""

    CAUGHT_BY = "test_what_leaves_its_context_stops_it_and_passes"

    async def __aexit__(self, kind, error, trace):
        await super().__aexit__(kind, error, trace)
        return kind is SystemExit


class SwallowsErrorsInItsContext(Server):
    """An error in its context does not leave it."""

    CAUGHT_BY = "test_an_error_in_its_context_stops_it"

    async def __aexit__(self, kind, error, trace):
        await super().__aexit__(kind, error, trace)
        return kind is not None


class ServesOneAtATime(Server):
    """Calls beside another get 503."""

    CAUGHT_BY = "test_many_calls_at_once"

    busy = 0

    def _answer(self, seen):
        self.busy += 1
        reply = super()._answer(seen)
        return reply if self.busy % 16 else Reply(error_status=503)


class StopsLater(Server):
    """It says that it has stopped while its port is still open."""

    CAUGHT_BY = "test_it_leaves_its_port_when_it_stops"

    async def stop(self):
        models, self._models = self._models, None
        if models is not None:

            async def later():
                await asyncio.sleep(3)
                await asyncio.to_thread(models.__exit__, None, None, None)

            self._later = asyncio.create_task(later())
