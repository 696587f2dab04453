"""The store server while MongoDB is down: it replies 503, recovers, and loses nothing."""

import asyncio

import aiohttp

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import StoreApp
from agl_store_mongo import MongoLightningStore

PREFIX = "/v1/agl"


async def test_the_store_server_survives_a_restart_of_mongodb(own_server):
    store = MongoLightningStore(own_server.uri, timeout_seconds=0.5)
    launcher = PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs())
    await launcher.start()
    kept: list[str] = []

    async with aiohttp.ClientSession(launcher.access_endpoint) as session:

        async def enqueue(number: int) -> tuple[int, dict]:
            body = {"rollouts": [{"input": number}]}
            async with session.post(f"{PREFIX}/queues/rollouts/enqueue", json=body) as reply:
                answer = await reply.json()
                if reply.status == 201:
                    kept.append(answer[0]["rollout_id"])
                return reply.status, answer

        for number in range(5):
            assert (await enqueue(number))[0] == 201
        waiting = asyncio.ensure_future(
            session.post(f"{PREFIX}/waits/rollouts", json={"rollout_ids": kept[:1], "timeout": 60})
        )
        own_server.kill()
        status, said = await enqueue(5)
        assert (status, said["error_type"]) == (503, "StoreUnavailableError")
        assert f"127.0.0.1:{own_server.port}" in said["detail"]
        async with session.get(f"{PREFIX}/health") as reply:
            assert reply.status == 503
        own_server.start()
        while (await enqueue(6))[0] != 201:  # it recovers without help
            await asyncio.sleep(0.05)
        async with session.get(f"{PREFIX}/rollouts") as reply:
            page = await reply.json()
        # A call that failed with 503 may have been stored too.
        assert set(kept) <= {rollout["rollout_id"] for rollout in page["items"]}
        ids = kept[0]
        async with session.post(f"{PREFIX}/rollouts/{ids}", json={"status": "cancelled"}) as reply:
            assert reply.status == 200
        async with await asyncio.wait_for(waiting, 30) as reply:
            assert reply.status in (200, 503)  # 503 if MongoDB was down when it read
            if reply.status == 200:
                assert [rollout["rollout_id"] for rollout in await reply.json()] == [ids]
    await launcher.stop()
    await store.close()
