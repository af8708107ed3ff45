"""The pool of ranks says what went wrong on which rank, and is of use afterwards."""

import os
import time

import pytest

from trainkit.testing import Pool, RankError

pytestmark = pytest.mark.xdist_group("pools")


def fail_on(here, where):
    if here == where:
        raise KeyError("a name that is missing")
    return here


def leave(here, where):
    if here == where:
        os._exit(3)
    return here


def hang(here, where):
    if here == where:
        time.sleep(600)
    return here


@pytest.fixture
def own():
    with Pool(2, seconds=2) as ranks:
        yield ranks


@pytest.mark.parametrize("where", [0, 1])
def test_reports_rank_type_and_message(pool, where):
    before = pool.process_ids
    text = f"fail_on failed on rank {where}: KeyError: 'a name that is missing'"
    with pytest.raises(RankError, match=text) as caught:
        pool.run(fail_on, [(0, where), (1, where)])
    assert list(caught.value.errors) == [where]
    assert "in fail_on" in caught.value.traces[where]
    assert pool.run(fail_on, [(0, 2), (1, 2)]) == [0, 1]
    assert pool.process_ids == before


def test_names_a_call_that_hangs_and_restarts(own):
    before = own.process_ids
    start = time.monotonic()
    with pytest.raises(RankError, match=r"hang failed on rank 1: no answer in 4 s"):
        own.run(hang, [(0, 1), (1, 1)])
    assert time.monotonic() - start < 30
    assert own.run(fail_on, [(0, 2), (1, 2)]) == [0, 1]
    assert not set(own.process_ids) & set(before)


def test_restarts_after_a_rank_is_gone(own):
    with pytest.raises(RankError, match="leave failed on rank 0: the process ended"):
        own.run(leave, [(0, 0), (1, 0)])
    assert own.run(fail_on, [(0, 2), (1, 2)]) == [0, 1]


def test_starts_at_the_first_call_and_stops():
    ranks = Pool(2)
    assert ranks.process_ids == []
    assert ranks.run(fail_on, [(0, 2), (1, 2)]) == [0, 1]
    assert len(set(ranks.process_ids)) == 2
    assert os.getpid() not in ranks.process_ids
    ranks.stop()
    ranks.stop()


def test_wants_arguments_for_every_rank(pool):
    with pytest.raises(ValueError, match="args must have 2 entries, one for each rank, got 1"):
        pool.run(fail_on, [(0, 0)])
