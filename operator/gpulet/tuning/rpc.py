"""The RPC server's process: `python -m gpulet.tuning.rpc SPEC`. It ends when it can measure no more.

TVM's own ``tvm.exec.rpc_server`` serves from a thread that dies with the first candidate that crashes its session, and
with a tracker that is away for a minute; its process stays, and no candidate reaches it again. Here the process ends
with that thread, and ``gpulet tune-server`` starts another.
"""

import os
import sys

from gpulet.api.workload import RPC_SERVER_PORT, TRACKER_PORT, TuneSpec
from gpulet.tuning.environment import prepare


def main(spec: TuneSpec) -> None:
    """Serves sessions one after the other; returns when the serving thread has died."""
    prepare()
    from tvm.rpc.server import PopenRPCServerState

    port = int(os.environ.get("GPULET_RPC_PORT", RPC_SERVER_PORT))
    state = PopenRPCServerState(
        host="0.0.0.0",
        port=port,
        port_end=port + 1,
        tracker_addr=(spec.tracker_host, TRACKER_PORT),
        key=spec.tracker_key,
        custom_addr=os.environ.get("POD_IP", "127.0.0.1"),
    )
    state.thread.join()


if __name__ == "__main__":
    main(TuneSpec.model_validate_json(sys.argv[1]))
    sys.exit("the serving thread has ended")
