"""The watch over the trainer's policies survives short disk errors."""

import asyncio
import errno

from rlinf_core.deploy.bridge import policies
from rlinf_core.deploy.bridge.policies import NewestForAll, Policies
from rlinf_core.policies.policy_folder import newest_version, policy_name


def test_a_moment_without_open_files_hides_no_policy_and_ends_no_watch(tmp_path, monkeypatch):
    trainer_policies, lacking = Policies(tmp_path, NewestForAll()), [True]

    def listed(folder):
        if lacking[0]:
            raise OSError(errno.EMFILE, "Too many open files")
        return newest_version(folder)

    monkeypatch.setattr(policies, "newest_version", listed)
    monkeypatch.setattr(policies, "SETTLED_S", -1.0)  # the folder's time is as good as settled
    monkeypatch.setattr(policies, "POLL_S", 0.001)

    async def watched():
        watch = asyncio.create_task(trainer_policies.watch())
        await asyncio.sleep(0.02)
        (tmp_path / policy_name(1)).write_bytes(b"")
        await asyncio.sleep(0.02)
        assert trainer_policies.newest == -1 and not watch.done()
        lacking[0] = False
        await asyncio.sleep(0.05)
        watch.cancel()

    asyncio.run(watched())
    assert trainer_policies.newest == 1
