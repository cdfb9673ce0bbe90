"""Signs of life of a run's processes, so that those who waited in vain can name the one that is missing.

PyTorch ends a collective that not all have joined in time, but does not say who is missing. So each process writes into
the group's store, every second, how many collectives it has come to. Nobody reads that until something is wrong.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass

import torch.distributed as dist

_BEAT = 1.0  # seconds between two signs of life
_WATCH = 2.2  # seconds in which who is alive has given one
_PATIENCE = 1.0  # seconds for an answer of the store: what does not answer is frozen, too
_GRACE = 1.0  # seconds for the others to read the store before the process that holds it ends
_VERDICT = "missing"


@dataclass(frozen=True)
class Sign:
    """What a process said of itself last; `count` tells one sign from the next."""

    count: int
    joined: int
    process: str


class Heartbeat:
    """This process's signs of life, and what it can tell of the others'."""

    def __init__(self, store: dist.Store, rank: int, world_size: int, store_is_ours: bool) -> None:
        self._store = dist.PrefixStore("heartbeat", store)
        self._rank, self._world_size, self._store_is_ours = rank, world_size, store_is_ours
        self._ended = threading.Event()
        self.joined = 0  # collectives that this process has come to
        self._give_sign(0)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give no more signs: the run has ended."""
        self._ended.set()
        self._thread.join(_PATIENCE)

    def missing(self) -> str:
        """Which ranks did not come to where this one waits, in words; all who ask hear the same. Takes some seconds."""
        answers: list[str] = []
        # The store may be held by a process that is frozen, and then never answers.
        asking = threading.Thread(target=lambda: answers.append(self._judge()), daemon=True)
        asking.start()
        asking.join(_WATCH + _PATIENCE)
        if not answers:
            return "rank 0, which holds the store of the group," if self._store_is_ours else "the store of the group"
        if self._store_is_ours and self._rank == 0:
            time.sleep(_GRACE)
        return answers[0]

    def _judge(self) -> str:
        try:
            before = self._signs()
            time.sleep(_WATCH)
            after = self._signs()
            silent = {rank: sign for rank, sign in after.items() if sign == before[rank]}
            behind = {rank: sign for rank, sign in after.items() if sign.joined < self.joined}
            words = " and ".join(f"rank {rank} ({sign.process})" for rank, sign in (silent or behind).items())
            # Whoever has read this ends, and is silent from then on: the first verdict is the one that counts.
            return self._store.compare_set(_VERDICT, "", words or "none of the ranks").decode()
        except dist.DistError:
            return "rank 0, which holds the store of the group," if self._store_is_ours else "the store of the group"

    def _signs(self) -> dict[int, Sign]:
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        signs = {}
        for rank, value in zip(others, self._store.multi_get([str(rank) for rank in others]), strict=True):
            count, joined, process = value.decode().split(" ", 2)
            signs[rank] = Sign(int(count), int(joined), process)
        return signs

    def _give_sign(self, count: int) -> None:
        self._store.set(str(self._rank), f"{count} {self.joined} pid {os.getpid()} on {socket.gethostname()}")

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(_BEAT):
            count += 1
            try:
                self._give_sign(count)
            except dist.DistError:  # the store has gone with the process that held it; a collective will tell
                return
