"""Histories in compact form: exact, and refused where damaged."""

import numpy as np
import pytest
from reproduction_cases import made, save

from fedmaba.errors import InputError
from laboratory import archive, targets
from laboratory.targets import RunKey


@pytest.mark.parametrize("most", [100, 255, 256, 700, 35_000, 100_000])
def test_accuracies_come_back_exactly(most, tmp_path):
    size = np.random.default_rng(0).integers(1, most + 1, 20)
    size[0], held = most, np.arange(1, 21)
    job = targets.load_target("figure1a").jobs[0]
    runs = [
        made("fedavg", 0, size, held=held),
        made("fedmaba", 0, size, 2, held=held, diverged="fedmaba, seed 0, diverged in round 21"),
        made("afl", 1, size, 0, deploy="average", diverged="afl, seed 1, diverged in round 2"),
    ]
    save(tmp_path / "x.npz", job, runs, held)
    batch = archive.read_file(tmp_path / "x.npz")
    assert batch.digest == job.digest
    assert batch.keys == (
        *(
            RunKey("fedavg", 0, "poly:8"),
            RunKey("fedmaba", 0, "poly:8"),
            RunKey("afl", 1, "average"),
        ),
    )
    for run, again in zip(runs, batch.runs.values(), strict=True):
        assert again.diverged == run.diverged
        assert (again.test_size == size).all()
        assert again.tables.keys() >= run.tables.keys()
        for name in run.tables:
            assert np.array_equal(run.column(name), again.column(name), equal_nan=True), name


def test_a_damaged_file_is_one_line(tmp_path):
    job, path = targets.load_target("figure1a").jobs[0], tmp_path / "x.npz"
    size = np.full(20, 100)
    save(path, job, [made("fedavg", 0, size)])
    good, rng, told = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(150):
        bad = bytearray(good)
        if rng.random() < 0.3:
            bad = bad[: rng.integers(len(good))]
        else:
            bad[rng.integers(len(good))] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        try:
            assert len(archive.read_file(path).runs) == 1
        except InputError as error:
            told.append(str(error))
    assert len(told) > 50
    assert not any("\n" in text for text in told)
    np.savez(path, about=np.frombuffer(b'{"format": 2}', np.uint8))
    with pytest.raises(InputError, match="format=2: it should be 1"):
        archive.read_file(path)


def test_the_same_run_twice_is_refused_and_parts_are_merged(tmp_path):
    job, size = targets.load_target("figure1a").jobs[0], np.full(20, 100)
    save(tmp_path / "a.npz", job, [made("fedavg", 0, size)])
    save(tmp_path / "b.npz", job, [made("fedavg", 1, size), made("fedmaba", 1, size)])
    history, used, missing = archive.collect(archive.read_folder(tmp_path), job)
    assert [(r.label, r.seed) for r in history.runs] == [
        *(("fedavg", 0), ("fedavg", 1), ("fedmaba", 1)),
    ]
    assert len(used) == 2
    assert len(missing) == len(job.runs) - 3
    save(tmp_path / "c.npz", job, [made("fedavg", 1, size)])
    with pytest.raises(InputError, match="both hold fedavg, seed 1: keep one"):
        archive.read_folder(tmp_path)
