"""A pod that is deleted while its program is still being imported ends at once, PID 1 or not."""

import signal
import subprocess
import sys

# As on a node whose CPU is short: the import takes its time.
SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path, target=None):
        if name == "gpulet.cli.main":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
from gpulet.cli.entry import main
main()
"""


def test_sigterm_ends_a_program_that_is_being_imported() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdout=subprocess.PIPE,
        # As PID 1 of a container, which has no default action for it.
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
