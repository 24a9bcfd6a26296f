"""`gpulet tune-tracker`: hands out servers to clients, and answers how far the job is."""

import logging
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpulet.api.workload import PROGRESS_PORT, TRACKER_PORT, TuneProgress, TuneSpec
from gpulet.tuning.child import go_on_in_a_child
from gpulet.tuning.environment import prepare, work_folder
from gpulet.tuning.records import client_progress

log = logging.getLogger("gpulet.tune-tracker")


def main(spec: str) -> None:
    """Entry point; runs until SIGTERM; exits 1 if the tracker's thread has died."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    go_on_in_a_child()
    prepare()
    parsed = TuneSpec.model_validate_json(spec)
    from tvm.rpc.tracker import PopenTrackerServerState

    # TVM's class Tracker would import TVM a second time, in a process of its own: 12 s more in a tenth of a core.
    tracker = PopenTrackerServerState(host="0.0.0.0", port=TRACKER_PORT, port_end=TRACKER_PORT + 1, silent=True)
    server = ThreadingHTTPServer(("0.0.0.0", PROGRESS_PORT), handler_of(parsed))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tracker.thread.join()
    # Clients and servers connect again to the next tracker.
    log.error("the tracker has ended")
    os._exit(1)


def progress(spec: TuneSpec) -> TuneProgress:
    """From the clients' records and the tracker's own list."""
    work = work_folder()
    clients = [client_progress(work, ordinal) for ordinal in range(spec.clients)]
    return TuneProgress(clients=clients, servers=_servers(spec))


def _servers(spec: TuneSpec) -> int:
    from tvm import rpc

    try:
        summary = rpc.connect_tracker("127.0.0.1", TRACKER_PORT).summary()
    except Exception as error:  # TVM raises bare errors of many kinds
        log.warning("tracker: %s", error)
        return 0
    return sum(s["key"] == f"server:{spec.tracker_key}" for s in summary["server_info"])


def handler_of(spec: TuneSpec) -> type[BaseHTTPRequestHandler]:
    """GET /progress and /healthz."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/progress":
                self._answer(progress(spec).model_dump_json(by_alias=True))
            elif self.path == "/healthz":
                self._answer("{}")
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

        def _answer(self, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
