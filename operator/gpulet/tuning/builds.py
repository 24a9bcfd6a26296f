"""Compiling candidates: a builder that keeps its workers, and libraries that a server loads without a compiler."""

import tempfile
from pathlib import Path
from typing import Any


def build_candidate(module: Any, target: Any) -> str:
    """Runs in a pool worker, which imports it by name. Answers the path of the candidate's shared library."""
    from gpulet.tuning.environment import prepare
    from gpulet.tuning.linking import export

    prepare()
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    scheduled = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    path = Path(tempfile.mkdtemp(prefix="candidate-")) / "candidate.so"
    export(build(scheduled, target=target), path)
    return str(path)


def pool_builder(*, timeout_s: int = 60, uses: int = 200) -> Any:
    """MetaSchedule's own builder starts a new pool, with an import of TVM, for every call; this one keeps its worker.

    A worker is renewed after ``uses`` builds, for the memory that compilations leave behind.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
    from tvm.support.popen_pool import PopenPoolExecutor, StatusKind

    @derived_object
    class PoolBuilder(PyBuilder):  # type: ignore[misc]  # TVM has no types
        def __init__(self) -> None:
            super().__init__()
            self.pool = PopenPoolExecutor(max_workers=1, timeout=timeout_s, maximum_process_uses=uses)

        def build(self, build_inputs: list[Any]) -> list[Any]:
            jobs = [(i.mod, i.target) for i in build_inputs]
            results = []
            for result in self.pool.map_with_error_catching(lambda job: build_candidate(*job), jobs):
                if result.status == StatusKind.COMPLETE:
                    results.append(BuilderResult(result.value, None))
                else:
                    results.append(BuilderResult(None, f"build failed: {result.value or f'not within {timeout_s} s'}"))
            return results

    return PoolBuilder()
