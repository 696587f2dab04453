"""New weights: checks before a load, updates, and the answers afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from vllm_parts.calls import chat, held_chat, release, until
from vllm_parts.models import SHAPES, write_adapter, write_model

from agl_core.errors import LLMServerError
from agl_core.llm_server import put_behind
from agl_proxy_direct import DirectProxy
from agl_server_vllm import VLLMServer
from agl_server_vllm.weights import (
    check_adapter,
    check_checkpoint,
    tensor_shapes,
    write_blank_adapter,
)
from agl_store_memory import InMemoryLightningStore

MakeServer = Callable[..., VLLMServer]
HEADLESS = {name: shape for name, shape in SHAPES.items() if name != "lm_head.weight"}


class TestChecks:
    @pytest.mark.parametrize(
        ("shapes", "config", "message"),
        [
            (SHAPES, {"tie_word_embeddings": True}, "ties its input and output embeddings"),
            (SHAPES, {"text_config": {"tie_word_embeddings": True}}, "ties its input"),
            # Models whose class ties by default do not state it in their configuration.
            (HEADLESS, {}, "ties its input and output embeddings"),
            ({**SHAPES, "lm_head.weight": (7, 4)}, {}, r"lm_head.weight of shape \[7, 4\] for"),
            ({**SHAPES, "extra.weight": (1,)}, {}, "with extra.weight"),
            ({"lm_head.weight": (6, 4)}, {}, r"without model.embed_tokens.weight, without model.l"),
        ],
    )
    def test_a_model_that_vllm_would_load_wrongly(
        self, tmp_path: Path, shapes: Any, config: Any, message: str
    ):
        folder = write_model(tmp_path / "new", 1.0, shapes, **config)
        with pytest.raises(LLMServerError, match=message):
            check_checkpoint(folder, SHAPES)

    def test_a_tied_model_is_refused_before_training_unless_only_an_adapter_is_trained(
        self, tmp_path: Path
    ):
        folder = write_model(tmp_path / "tied", 1.0, HEADLESS, tie_word_embeddings=True)
        with pytest.raises(LLMServerError, match="ties its input and output embeddings"):
            VLLMServer(folder).check_updates(folder)
        VLLMServer(folder, lora=True).check_updates(folder)
        VLLMServer(folder).check_updates(write_model(tmp_path / "other", 1.0))

    def test_another_model_is_accepted_without_strict_weights(self, tmp_path: Path):
        folder = write_model(tmp_path / "new", 1.0, {**SHAPES, "extra.weight": (1,)})
        check_checkpoint(folder, {}, strict=False)

    def test_a_model_of_the_same_shape_is_accepted(self, tmp_path: Path):
        check_checkpoint(write_model(tmp_path / "new", 1.0), SHAPES)

    def test_a_sharded_model(self, tmp_path: Path):
        folder = write_model(tmp_path / "new", 1.0, {"a": (1,)})
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        write_model(tmp_path / "rest", 1.0, {"b": (2,)})
        (tmp_path / "rest" / "model.safetensors").rename(folder / "two.safetensors")
        (folder / "left-over.safetensors").write_bytes(b"")
        index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert tensor_shapes(folder) == {"a": (1,), "b": (2,)}

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is not a valid safetensors file"),
            (b"\xff" * 64, "its header is truncated"),
            (b"\x02" + b"\x00" * 7 + b"[]", "is not a valid safetensors file"),
        ],
    )
    def test_broken_files(self, tmp_path: Path, data: bytes, message: str):
        folder = write_model(tmp_path / "new", 1.0)
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(LLMServerError, match=message):
            check_checkpoint(folder, SHAPES)

    def test_a_file_that_is_still_being_written(self, tmp_path: Path):
        folder = write_model(tmp_path / "new", 1.0)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(LLMServerError, match="its data is truncated"):
            check_checkpoint(folder, SHAPES)

    def test_no_weights(self, tmp_path: Path):
        folder = write_model(tmp_path / "new", 1.0)
        (folder / "model.safetensors").unlink()
        with pytest.raises(LLMServerError, match=r"it has no \*\.safetensors files"):
            check_checkpoint(folder, SHAPES)

    def test_adapters(self, tmp_path: Path):
        check_adapter(write_adapter(tmp_path / "a", 1.0, rank=8), max_rank=8)
        with pytest.raises(LLMServerError, match="rank 9: start the server with max_lora_rank=9"):
            check_adapter(write_adapter(tmp_path / "b", 1.0, rank=9), max_rank=8)
        pattern = {"q_proj": 12}
        with pytest.raises(LLMServerError, match="of rank 12"):
            check_adapter(write_adapter(tmp_path / "c", 1.0, rank_pattern=pattern), max_rank=8)
        empty = write_adapter(tmp_path / "d", 1.0)
        (empty / "adapter_model.safetensors").unlink()
        with pytest.raises(LLMServerError, match="has no weights"):
            check_adapter(empty, max_rank=8)
        with pytest.raises(LLMServerError, match="has no rank"):
            check_adapter(write_adapter(tmp_path / "e", 1.0, r=None), max_rank=8)

    def test_a_blank_adapter_fits_its_model(self, tmp_path: Path):
        write_blank_adapter(tmp_path / "blank", SHAPES)
        check_adapter(tmp_path / "blank", max_rank=1)
        prefix = "base_model.model.model.layers.0.self_attn.q_proj"
        assert tensor_shapes(tmp_path / "blank") == {
            f"{prefix}.lora_A.weight": (1, 4),
            f"{prefix}.lora_B.weight": (8, 1),
        }
        data = (tmp_path / "blank" / "adapter_model.safetensors").read_bytes()
        assert data.endswith(bytes(4 * (4 + 8)))

    def test_a_model_of_unknown_projections_needs_an_adapter(self, tmp_path: Path):
        with pytest.raises(LLMServerError, match="pass one as adapter="):
            write_blank_adapter(tmp_path / "blank", {"h.0.mix.weight": (4, 4)})


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write_model(tmp_path / "models" / "second", 2.0)


@pytest.fixture
def adapters(tmp_path: Path) -> list[Path]:
    return [write_adapter(tmp_path / "adapters" / str(n), float(n)) for n in range(3)]


class TestUpdate:
    @pytest.mark.parametrize("faults", ["", "busy-cache"])
    async def test_an_update_clears_the_prefix_cache(
        self, make_server: MakeServer, second: Path, faults: str
    ):
        async with make_server(faults) as server:
            before = await chat(server)
            assert await chat(server) == before
            await server.update_weights(second, version="step-1")
            after = await chat(server)
            assert after != before
            await server.update_weights(second, version="step-2")
            assert (await chat(server), server.model_version) == (after, "step-2")

    async def test_calls_in_flight_end_and_new_ones_wait(
        self, make_server: MakeServer, second: Path
    ):
        async with make_server() as server:
            old = await chat(server)
            early = await held_chat(server)
            updating = asyncio.create_task(server.update_weights(second, version="step-1"))
            await until(server, paused=True)
            late = asyncio.create_task(chat(server, messages=[{"role": "late"}]))
            done, _ = await asyncio.wait([early, updating, late], timeout=0.3)
            assert not done
            await release(server)
            assert await early == old
            await updating
            assert await late != old

    async def test_calls_that_do_not_end_stop_the_update(
        self, make_server: MakeServer, second: Path
    ):
        async with make_server(update_timeout=0.3) as server:
            early = await held_chat(server)
            with pytest.raises(LLMServerError, match="drain the proxy before an update"):
                await server.update_weights(second, version="step-1")
            await until(server, paused=False)
            await release(server)
            assert (await chat(server), server.model_version) == (await early, "0")

    async def test_a_cancelled_update_keeps_the_old_weights(
        self, make_server: MakeServer, second: Path
    ):
        async with make_server() as server:
            early = await held_chat(server)
            updating = asyncio.create_task(server.update_weights(second, version="step-1"))
            await until(server, paused=True)
            updating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await updating
            await until(server, paused=False)
            await release(server)
            assert (await chat(server), server.model_version) == (await early, "0")

    async def test_an_update_in_a_cancelled_scope_keeps_the_old_weights(
        self, make_server: MakeServer, second: Path
    ):
        async with make_server() as server:
            early = await held_chat(server)
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: server.update_weights(second, version="step-1"))
                await until(server, paused=True)
                group.cancel_scope.cancel()
            await until(server, paused=False)
            await release(server)
            assert (await chat(server), server.model_version) == (await early, "0")

    async def test_weights_that_fail_to_load_leave_the_old_weights(
        self, make_server: MakeServer, second: Path
    ):
        async with make_server("bad-reload") as server:
            old = await chat(server)
            with pytest.raises(LLMServerError, match=r"500: Call to collective_rpc .*of memory"):
                await server.update_weights(second, version="step-1")
            assert (await chat(server), server.model_version) == (old, "0")
            await server.update_weights(second, version="step-1")
            assert (await chat(server) != old, server.model_version) == (True, "step-1")

    @pytest.mark.parametrize("faults", ["worse-reload", "stuck-cache"])
    async def test_a_server_of_unknown_weights_is_stopped(
        self, make_server: MakeServer, second: Path, faults: str
    ):
        async with make_server(faults, update_timeout=0.5) as server:
            with pytest.raises(LLMServerError, match="weights were unknown after an update"):
                await server.update_weights(second, version="step-1")
            assert not server.is_running()

    @pytest.mark.parametrize(
        ("revision", "args"),
        [
            ("main", []),
            ("v1", ["--revision=v1"]),
            ("v1", ["--revision", "v1", "--download_dir", "hub"]),
        ],
    )
    async def test_a_model_of_the_hub(
        self,
        make_server: MakeServer,
        second: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        revision: str,
        args: list[str],
    ):
        """It is found in the cache, with the revision and the folder that vLLM was given."""
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "hub" / "models--org--first"
        write_model(folder / "snapshots" / "abc", 1.0)
        (folder / "refs").mkdir()
        (folder / "refs" / revision).write_text("abc")
        env = {"HF_HUB_CACHE": str(tmp_path / ("none" if "hub" in args else "hub"))}
        async with make_server(path="org/first", args=args, env=env) as server:
            old = await chat(server)
            await server.update_weights(second, version="step-1")
            assert await chat(server) != old

    async def test_a_model_of_the_hub_that_cannot_be_found_is_served(
        self, make_server: MakeServer, second: Path, tmp_path: Path
    ):
        async with make_server(path="org/first", env={"HF_HUB_CACHE": str(tmp_path)}) as server:
            old = await chat(server)
            with pytest.raises(LLMServerError, match="the files of org/first cannot be found"):
                await server.update_weights(second, version="step-1")
            assert (await chat(server), server.model_version) == (old, "0")

    async def test_a_relative_path(
        self, make_server: MakeServer, second: Path, monkeypatch: pytest.MonkeyPatch
    ):
        async with make_server() as server:
            monkeypatch.chdir(second.parent)
            before = await chat(server)
            await server.update_weights(second.name, version="1")
            assert await chat(server) != before


class TestAdapters:
    async def test_the_first_adapter_changes_nothing_or_is_the_given_one(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        async with make_server(lora=True) as server:
            base = await chat(server, server.base_model)
            blank = await chat(server)
            assert blank.startswith(base)
            scratch = server._engine and server._engine.scratch
            assert scratch
            assert scratch.exists()
        assert not scratch.exists()
        async with make_server(lora=True, adapter=adapters[1]) as server:
            given = await chat(server)
            await server.update_weights(adapters[2], version="step-1")
            assert await chat(server) != given
            assert await chat(server, server.base_model) == base

    async def test_rollouts_can_use_different_adapters(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        """The rollouts' resources name different models."""
        async with make_server(lora=True, max_loras=3) as server:
            for number, folder in enumerate(adapters):
                await server.load_adapter(f"policy-{number}", folder)
            assert list(server.adapters) == ["policy-0", "policy-1", "policy-2"]
            store = InMemoryLightningStore()
            proxy = DirectProxy(store=store)
            put_behind(proxy, server)
            await proxy.start()
            try:
                said = {
                    name: await self.ask(proxy, store, name)
                    for name in ("policy", "policy-0", "policy-1", "policy-2")
                }
                assert len(set(said.values())) == 4
                await server.load_adapter("policy-2", adapters[0])
                assert await self.ask(proxy, store, "policy-2") == said["policy-0"]
                await server.unload_adapter("policy-0")
                put_behind(proxy, server)
                assert "policy-0" not in [e["model_name"] for e in server.model_list()]
            finally:
                await proxy.stop()

    async def ask(self, proxy: DirectProxy, store: InMemoryLightningStore, model: str) -> str:
        from openai import AsyncOpenAI

        rollout = await store.start_rollout(input=model)
        llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, model)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            reply = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": "Hi"}]
            )
        return reply.choices[0].message.content or ""

    async def test_a_name_of_an_unloaded_adapter_can_be_used_again(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        async with make_server(lora=True, max_loras=2) as server:
            await server.load_adapter("x", adapters[1])
            old = await chat(server, "x")
            await server.unload_adapter("x")
            await server.load_adapter("x", adapters[2])
            assert await chat(server, "x") != old

    async def test_a_load_that_is_finished_too_late_can_be_tried_again(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        async with make_server("slow-load", lora=True, update_timeout=0.5) as server:
            with pytest.raises(LLMServerError, match=r"did not answer /v1/load_lora_adapter"):
                await server.load_adapter("x", adapters[1])
            assert not server.adapters
            await server.load_adapter("x", adapters[2])
            assert server.adapters == {"x": adapters[2]}

    async def test_an_adapter_that_was_refused_is_tried_again_as_a_new_one(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        async with make_server("bad-reload", lora=True, update_timeout=5) as server:
            with pytest.raises(LLMServerError, match="Loading lora failed"):
                await server.load_adapter("x", adapters[1])
            call = await held_chat(server)
            await server.load_adapter("x", adapters[2])  # a replacement waits for calls in flight
            await release(server)
            await call
            assert server.adapters == {"x": adapters[2]}

    async def test_an_adapter_that_fails_to_load_leaves_the_old_one(
        self, make_server: MakeServer, adapters: list[Path]
    ):
        async with make_server("bad-reload", lora=True, adapter=adapters[0]) as server:
            old = await chat(server)
            with pytest.raises(LLMServerError, match="Loading lora failed"):
                await server.update_weights(adapters[1], version="step-1")
            assert (await chat(server), server.model_version) == (old, "0")

    @pytest.mark.parametrize("lora", [False, True])
    async def test_refused_adapters(
        self, make_server: MakeServer, adapters: list[Path], second: Path, lora: bool
    ):
        async with make_server(lora=lora) as server:
            wrong = second if lora else adapters[0]
            with pytest.raises(LLMServerError, match="LoRA adapter"):
                await server.update_weights(wrong, version="step-1")
            with pytest.raises(LLMServerError, match="is loaded; loaded are: none"):
                await server.unload_adapter("x")
            name, why = (server.base_model, "own name") if lora else ("x", "lora=True")
            with pytest.raises(LLMServerError, match=why):
                await server.load_adapter(name, adapters[0])
