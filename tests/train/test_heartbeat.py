"""The watchdog of ranks: what one process says of the others."""

from __future__ import annotations

import torch.distributed as dist

from transnormer.train.heartbeat import Heartbeat


def test_all_name_the_rank_that_was_missed_first():
    """A rank that ends because another is missing would otherwise be named, too, by whoever looks later."""
    store = dist.HashStore()
    beats = [Heartbeat(store, rank, 3, store_is_ours=False) for rank in range(3)]
    beats[1].stop()
    first = beats[0].missing()
    assert first.startswith("rank 1 (")
    assert "rank 2" not in first
    beats[0].stop()
    assert beats[2].missing() == first
    beats[2].stop()
