"""What the serving program says of itself over HTTP: /report, /ready, /healthz."""

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

log = logging.getLogger("gpulet.serve")

Answer = tuple[int, str]


def serve_report(port: int, answers: dict[str, Callable[[], Answer]]) -> ThreadingHTTPServer:
    """Answers GET requests from ``answers`` (path -> status and JSON text) in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            if answer is None:
                self.send_error(404)
                return
            status, text = answer()
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
