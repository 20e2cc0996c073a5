"""Several ranks of torch.distributed in the threads of one process, for tests without processes."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

from rlinf_core.policies.sharding import set_group


def in_ranks(size, function):
    """Return the results of ``function(rank)``, which each rank calls in its thread."""
    store = dist.HashStore()

    def run(rank):
        dist.init_process_group("threaded", rank=rank, world_size=size, store=store)
        try:
            return function(rank)
        except BaseException as error:
            ProcessLocalGroup.exception_handle(error)  # the others may wait for this rank
            raise
        finally:
            dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    try:
        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(run, rank) for rank in range(size)]
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        set_group(None)
    errors = [error for future in futures if (error := future.exception())]
    for error in errors:
        if isinstance(error, Exception):  # the ranks that waited for it have a SystemExit
            raise error
    return [future.result() for future in futures]
