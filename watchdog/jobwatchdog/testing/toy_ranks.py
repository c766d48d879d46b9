"""What one rank of the toy job computes: with PyTorch (gloo, CPU) where it is installed, else with plain sockets.

Both offer the same five calls, so the training loop and its faults do not know the difference.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import struct
import time
from pathlib import Path
from typing import Any, Protocol

OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has a total capacity of 79.11 GiB of which 1.02 GiB "
    "is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the allocated memory 74.51 "
    "GiB is allocated by PyTorch, and 2.31 GiB is reserved by PyTorch but unallocated."
)


class RankBackend(Protocol):
    """A model, its optimiser, and its peers."""

    suffix: str

    def step(self, step: int) -> tuple[float, float]:
        """One optimiser step together with all ranks; mean loss and gradient norm."""

    def damage(self, factor: float) -> None:
        """Multiplies the weights: NaN for ever, or a spike that training heals slowly."""

    def save(self, path: Path, step: int) -> None:
        """Writes a checkpoint, under its final name only when whole."""

    def load(self, path: Path) -> int:
        """Restores it; returns its step."""

    def out_of_memory(self) -> Exception:
        """The error that the framework would raise."""


def make(kind: str, rank: int, world: int) -> RankBackend:
    """`auto` takes PyTorch when it can be imported."""
    if kind in ("auto", "torch"):
        try:
            return TorchRank(rank, world)
        except ModuleNotFoundError:
            if kind == "torch":
                raise
    return PlainRank(rank, world)


class TorchRank:
    """A small network under DistributedDataParallel; the group's timeout stays at its 30-minute default."""

    suffix = ".pt"

    def __init__(self, rank: int, world: int) -> None:
        import torch
        from torch import distributed as dist

        self._torch: Any = torch
        self._rank = rank
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world)
        torch.manual_seed(1)
        self._model: Any = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self._ddp: Any = torch.nn.parallel.DistributedDataParallel(self._model)
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=0.02)

    def step(self, step: int) -> tuple[float, float]:
        """Data depends on step and rank only: a resumed run sees what the lost one saw."""
        torch = self._torch
        generator = torch.Generator().manual_seed(1000 * step + self._rank)
        x = torch.randn(64, 16, generator=generator)
        loss = ((self._ddp(x) - x.sum(1, keepdim=True) / 4) ** 2).mean() + 1.5
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        return mean.item() / torch.distributed.get_world_size(), norm.item()

    def damage(self, factor: float) -> None:
        """In place, as a bad update would."""
        with self._torch.no_grad():
            for parameter in self._model.parameters():
                parameter.mul_(factor)

    def save(self, path: Path, step: int) -> None:
        """One torch.save file."""
        temporary = path.with_name(path.name + ".tmp")
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": step}
        self._torch.save(state, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> int:
        """Weights only: no code of a checkpoint is run."""
        state = self._torch.load(path, weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def out_of_memory(self) -> Exception:
        """The class of the installed version."""
        made: Exception = self._torch.OutOfMemoryError(OOM_TEXT.format(gpu=self._rank))
        return made


class OutOfMemoryError(RuntimeError):
    """Stands in for PyTorch's."""


OutOfMemoryError.__module__ = "torch"


class PlainRank:
    """One weight vector, averaged through rank 0 over a socket."""

    suffix = ".safetensors"
    size = 8

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._weights = [0.0] * self.size
        address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"]))
        self._peers = _accept(address, world) if rank == 0 else [_connect(address)]

    def step(self, step: int) -> tuple[float, float]:
        """Linear regression on noise of the step's own seed."""
        noise = random.Random(1000 * step + self._rank)  # noqa: S311  # training data, not a secret
        gradient, loss = [0.0] * self.size, 1.5
        for _ in range(16):
            x = [noise.gauss(0, 1) for _ in range(self.size)]
            error = sum(w * v for w, v in zip(self._weights, x, strict=True)) - sum(x) / 4
            loss += error * error / 16
            gradient = [g + error * v / 8 for g, v in zip(gradient, x, strict=True)]
        mean = self._all_reduce([*gradient, loss])
        norm = math.sqrt(sum(g * g for g in mean[:-1]))
        shrink = min(1.0, 1.0 / norm) if norm > 0 else 1.0
        self._weights = [w - 0.05 * g * shrink for w, g in zip(self._weights, mean[:-1], strict=True)]
        return mean[-1], norm

    def damage(self, factor: float) -> None:
        """See the protocol."""
        self._weights = [(w or 0.01) * factor for w in self._weights]

    def save(self, path: Path, step: int) -> None:
        """A safetensors file, by hand."""
        end = 8 * self.size
        header = json.dumps(
            {
                "__metadata__": {"step": str(step)},
                "weights": {"dtype": "F64", "shape": [self.size], "data_offsets": [0, end]},
            }
        ).encode()
        temporary = path.with_name(path.name + ".tmp")
        body = struct.pack(f"<{self.size}d", *self._weights)
        temporary.write_bytes(struct.pack("<Q", len(header)) + header + body)
        temporary.replace(path)

    def load(self, path: Path) -> int:
        """Back from `save`."""
        raw = path.read_bytes()
        length = struct.unpack_from("<Q", raw)[0]
        header = json.loads(raw[8 : 8 + length])
        self._weights = list(struct.unpack_from(f"<{self.size}d", raw, 8 + length))
        return int(header["__metadata__"]["step"])

    def out_of_memory(self) -> Exception:
        """In PyTorch's words."""
        return OutOfMemoryError(OOM_TEXT.format(gpu=self._rank))

    def _all_reduce(self, values: list[float]) -> list[float]:
        shape = struct.Struct(f"<{len(values)}d")
        if self._rank != 0:
            self._peers[0].sendall(shape.pack(*values))
            return list(shape.unpack(_receive(self._peers[0], shape.size)))
        rows = [values, *(shape.unpack(_receive(peer, shape.size)) for peer in self._peers)]
        mean = [sum(column) / self._world for column in zip(*rows, strict=True)]
        for peer in self._peers:
            peer.sendall(shape.pack(*mean))
        return mean


def _accept(address: tuple[str, int], world: int) -> list[socket.socket]:
    with socket.create_server(address) as server:
        return [server.accept()[0] for _ in range(world - 1)]


def _connect(address: tuple[str, int]) -> socket.socket:
    """Rank 0 may be slower to start than we are."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _receive(peer: socket.socket, n_bytes: int) -> bytes:
    got = b""
    while len(got) < n_bytes:
        chunk = peer.recv(n_bytes - len(got))
        if not chunk:
            raise ConnectionError(f"Connection closed by peer [{peer.getpeername()[0]}]:{peer.getpeername()[1]}")
        got += chunk
    return got
