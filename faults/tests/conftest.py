"""One thread for each process of the tests: there is a process for each core already."""

import os

import torch


def pytest_configure():
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    torch.set_num_threads(1)
