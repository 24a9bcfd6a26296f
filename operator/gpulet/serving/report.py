"""What the serving program says of itself over HTTP: /report, /ready, /healthz."""

import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from gpulet.serving.state import Server

log = logging.getLogger("gpulet.serve")


def serve_report(port: int, state: Server) -> ThreadingHTTPServer:
    """Answers GET requests in threads of its own, from now on."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/report":
                self._answer(200, state.report().model_dump_json(by_alias=True, exclude_none=True))
            elif self.path == "/ready":
                self._answer(200 if state.ready() else 503, "{}")
            elif self.path == "/healthz":
                self._answer(200 if state.healthy() else 503, "{}")
            else:
                self.send_error(404)

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
    Thread(target=server.serve_forever, name="report", daemon=True).start()
    return server
