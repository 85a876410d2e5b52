# SPDX-License-Identifier: Apache-2.0
"""Groups of processes, one after the other: ``parallel_worker.py FOLDER SIZE [FOLDER SIZE ...]``.

Each process of a group does the jobs in its folder's jobs.pkl, and saves what it found beside it as
rank<r>.pt. On the CPU the processes are forks of one that has imported everything, and computed
nothing yet: threads would not survive.
"""

import contextlib
import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from parallel_cases import STYLES, WEIGHTS, enabled, kind, layer, observed, shard_of, share
from torch.multiprocessing.spawn import start_processes
from transformers import AutoModelForCausalLM, DistributedConfig

import ladder
from ladder.nn.parallel import choose, cut


def device():
    """This process's own."""
    return torch.device("cuda", dist.get_rank()) if kind() == "cuda" else torch.device("cpu")


def cut_layer(weight, style):
    """y and the gradient of x of one exact layer."""
    rank, size = dist.get_rank(), dist.get_world_size()
    linear, x, grad = layer(weight, device())
    shard = choose("layer", linear.packed_weight, shard_of(style, rank, size))
    cut(linear, shard, dist.group.WORLD)
    own = share(x, rank, size) if shard.x_split else x
    own.requires_grad_()
    y = linear(own)
    y.backward(share(grad, rank, size) if shard.y_split else grad)
    with torch.no_grad():
        assert torch.equal(linear(own), y)
    return shard.along, y.detach().cpu(), own.grad.cpu()


def compiled_layers():
    """Whether layers that sum and that gather give the same when they are compiled."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = [layer("even", device())[0] for _ in range(3)]
    for linear, style in zip(layers, ("colwise", "rowwise", "colwise_gather_output"), strict=True):
        cut(linear, shard_of(style, rank, size), dist.group.WORLD)
    chain, x = torch.nn.Sequential(*layers), layer("even", device())[1]
    with torch.no_grad():
        compiled = torch.compile(chain, fullgraph=True, backend="aot_eager")
        return torch.equal(compiled(x), chain(x))


def load(folder, **options):
    config = DistributedConfig(tp_size=dist.get_world_size(), **options.pop("distributed", {}))
    return AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=config, **{"dtype": torch.float32} | options
    )


def work(rank, folder, size):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    jobs = pickle.loads((folder / "jobs.pkl").read_bytes())
    meeting = f"file://{folder}/rendezvous"
    backend = "nccl" if kind() == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)
    if backend == "nccl":
        torch.cuda.set_device(device())
    found = {"layers": {(w, s): cut_layer(w, s) for w in WEIGHTS for s in STYLES}}
    found["compiled"] = jobs.pop("compile", False) and compiled_layers()
    found["errors"] = {}
    for name, job in jobs.items():
        with enabled(job):
            try:
                model = load(**{key: value for key, value in job.items() if key != "enable"})
            except ladder.Unsupported as error:
                found["errors"][name] = str(error)
                continue
        found[name] = observed(model)
        model.save_pretrained(folder / name)
        with contextlib.suppress(ladder.Unsupported):
            model.dequantize()
            found["errors"][name] = "was dequantised"
    torch.save(found, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def main(arguments):
    start_method = "fork" if kind() == "cpu" else "spawn"  # CUDA does not survive a fork
    for folder, size in zip(map(Path, arguments[::2]), map(int, arguments[1::2]), strict=True):
        start_processes(work, (folder, size), nprocs=size, start_method=start_method)


if __name__ == "__main__":
    main(sys.argv[1:])
