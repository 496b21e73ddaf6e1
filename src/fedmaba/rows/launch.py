"""Launch Triton kernels, or only compile those that some work needs, all at the same time."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import triton

PROGRAMS = 264  # A launch with fewer programs leaves parts of a large GPU idle.
_compiling = ContextVar("compiling", default=False)


def launch_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel; inside `compile_only`, only compile it."""
    if _compiling.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


def compile_only(work: Callable[[], object]) -> None:
    """Compile the kernels that some work launches, on all cores at once, and run none of them.

    What `work` computes is meaningless. Older versions of Triton cannot do this; there a kernel is
    compiled at its first launch.
    """
    if not hasattr(triton, "AsyncCompileMode"):
        return
    before = _compiling.set(True)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool, triton.AsyncCompileMode(pool):
            work()
    finally:
        _compiling.reset(before)
