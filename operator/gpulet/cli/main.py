"""The command ``gpulet``: one entry for users, and for the programs that run in pods.

Each command imports its program when it is called: an image holds only the libraries of what runs in it.
"""

from pathlib import Path
from typing import Annotated

import typer

from gpulet.cli.commands import register

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
register(app)

Spec = Annotated[str, typer.Argument(help="The program's specification as JSON (gpulet.api.workload).")]


@app.command()
def controller() -> None:
    """Run the operator (in its pod, or anywhere with a kubeconfig)."""
    from gpulet.controller.main import main as run

    run()


@app.command()
def agent(config: Annotated[Path, typer.Option(help="Agent configuration file.")]) -> None:
    """Run the node agent: the DRA driver gpulet.dev of this node."""
    from gpulet.agent.main import main as run

    run(config)


@app.command("mps-runner")
def mps_runner(root: Annotated[Path, typer.Option(help="Folder of daemon files.")] = Path("/run/gpulet/mps")) -> None:
    """Keep one foreground MPS control daemon for each file under ROOT."""
    from gpulet.agent.runner import main as run

    run(root)


@app.command()
def serve(spec: Spec) -> None:
    """Serve models with Triton (in a serving pod)."""
    from gpulet.serving.main import main as run

    run(spec)


@app.command("profile-run")
def profile_run(spec: Spec) -> None:
    """Measure the model that is served beside this container."""
    from gpulet.profiling.main import main as run

    run(spec)


@app.command("tune-tracker")
def tune_tracker(spec: Spec) -> None:
    """Run the RPC tracker of a TuningJob and answer its progress."""
    from gpulet.tuning.tracker import main as run

    run(spec)


@app.command("tune-server")
def tune_server(spec: Spec) -> None:
    """Measure candidates in this share for the job's clients."""
    from gpulet.tuning.server import main as run

    run(spec)


@app.command("tune-client")
def tune_client(spec: Spec) -> None:
    """Search and compile one shard of the model's operators."""
    from gpulet.tuning.client import main as run

    run(spec)


@app.command("tune-merge")
def tune_merge(spec: Spec) -> None:
    """Merge the clients' records, build, check against the untuned output, measure, store."""
    from gpulet.tuning.merge import main as run

    run(spec)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
