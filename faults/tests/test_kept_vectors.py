"""What a site keeps between rounds is whole, whenever it dies."""

import os
import signal

import numpy as np

from faults import inject
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask


def test_the_file_of_a_site_that_dies_in_any_file_operation_is_whole(tmp_path):
    one, two = ({"w": np.full(3, value, np.float32)} for value in (1, 2))
    store, federation = KeptVectors(tmp_path / "kept", "a"), "0" * 32
    store.save(KeptVectorsTask(federation, 4, 3), {"c": one}, {"c": one})
    ends = []
    for number in range(50):
        child = os.fork()
        if child == 0:
            with inject.at(tmp_path, number, inject.die):
                store.save(KeptVectorsTask(federation, 5, 4), {"c": one}, {"c": two})
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        found = store.load(KeptVectorsTask(federation, 5, 4), {"c": one}, in_mean=True)
        np.testing.assert_array_equal(found["c"]["w"], one["w"])
        if ends[-1] == 0:
            break
    assert ends[-1] == 0
    assert ends[:-1] == [-signal.SIGKILL] * (len(ends) - 1)
    assert len(ends) > 4
    found = store.load(KeptVectorsTask(federation, 6, 5), {"c": one})
    np.testing.assert_array_equal(found["c"]["w"], two["w"])
    assert len(list((tmp_path / "kept").iterdir())) == 1  # what the dead left is gone
