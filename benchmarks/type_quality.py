# SPDX-License-Identifier: Apache-2.0
"""Which weight type costs how much perplexity, by type and group?

    python benchmarks/type_quality.py [--windows N] [--types NAME...] [--groups G...] [--device D]
                                      [--calibration N]
    python benchmarks/type_quality.py --mixtures BITS... --types NAME... [--measure one|each]
    python benchmarks/type_quality.py --trained STEPS --types NAME... --calibration N
    python benchmarks/type_quality.py --learned-scales STEPS --types NAME...
    python benchmarks/type_quality.py --train-blocks STEPS --types NAME... --calibration N
    python benchmarks/type_quality.py --model FOLDER --tokens FILE.npy

Without ``--model`` it is the model of examples/tiny-llama-gptq, dequantised and rotated: its codes
would favour the type that they came from. A random orthogonal matrix on the residual stream changes
every weight and not the function, so the perplexity is still that of the example. Every Linear but
the output embedding is then quantised by ``ladder.convert``, once for each type and group, and
``ladder.evaluate.perplexity`` measures the packed model. ``--calibration`` chooses codes by windows
of the same file that are not measured, as many as it says, spread over what is left.

``--mixtures`` chooses a type for each layer of ``--types``, in groups of the first of ``--groups``,
for so many bits a weight on average, by ``--choose`` windows that are not measured.

``--trained`` trains the weights for each of ``--types``, in groups of the first of ``--groups``, on
all windows that are not measured (:mod:`ladder.qat`). ``--learned-scales`` does so twice, with
scales found anew in each step and learned. ``--train-blocks`` trains those of one block after the
other, on the windows that codes are chosen by.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a checkout in which nothing is installed

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import ladder
from benchmarks.machine import describe
from benchmarks.type_mixtures import mixtures
from benchmarks.type_training import BATCH, blocks_trained, scales_learned, trainings
from ladder.evaluate.perplexity import load_tokens, perplexity, spread
from ladder.integrations.transformers import dense, enable
from ladder.nn.mixed_precision import candidates_of
from ladder.types import parse, type_names

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny-llama-gptq"
GROUPS = (32, 64, 128, -1)


def example() -> nn.Module:
    """The example in float32, every weight off the grid that GPTQ put it on."""
    with enable("gptq"):
        model = dense(AutoModelForCausalLM.from_pretrained(EXAMPLE, dtype=torch.float32))
    size, generator = model.config.hidden_size, torch.Generator().manual_seed(0)
    normal = torch.randn(size, size, dtype=torch.float64, generator=generator)
    rotation = torch.linalg.qr(normal).Q
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())  # no longer the embedding
    model.config.tie_word_embeddings = False

    def rotate(norm: nn.Module, readers: list[nn.Module]) -> None:
        """Put the scale of ``norm`` into those that read it, and rotate what they read."""
        for reader in readers:
            reader.weight.data = ((reader.weight * norm.weight).double() @ rotation).float()
        norm.weight.data.fill_(1)

    with torch.no_grad():
        model.model.embed_tokens.weight.data = (
            model.model.embed_tokens.weight.double() @ rotation
        ).float()
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            rotate(layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj])
            rotate(layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj])
            for writer in (attention.o_proj, mlp.down_proj):
                writer.weight.data = (rotation.T @ writer.weight.double()).float()
        rotate(model.model.norm, [model.lm_head])
    return model.eval()


def requests(groups: tuple[int, ...], names: list[str]) -> list[tuple[str, bool, tuple]]:
    """(type, symmetric, its groups): every type of at most 8 bits, unsigned integers also with a
    zero point for each group."""
    found: list[tuple[str, bool, tuple]] = []
    for name in names or type_names():
        ttype = parse(name)
        if ttype.bits > 8:
            continue
        if ttype.scale is not None:  # MX types and NVFP4 have blocks of their own
            found.append((name, True, (None,)))
            continue
        found.append((name, True, groups))
        if ttype.element.encoding == "unsigned_integer":
            found.append((name, False, groups))
    return found


def bits_per_weight(model: nn.Module) -> float:
    layers = [m for m in model.modules() if isinstance(m, ladder.Linear)]
    stored = sum(layer.packed_weight.nbytes * 8 for layer in layers)
    return stored / sum(layer.in_features * layer.out_features for layer in layers)


def measure(
    model: nn.Module,
    tokens: Tensor,
    name: str,
    symmetric: bool,
    group: int | None,
    device: str,
    calibration: Tensor | None,
) -> tuple[float, float]:
    """Bits a weight and perplexity of ``model`` with every Linear quantised so."""
    packed = copy.deepcopy(model).to("cpu" if calibration is None else device)
    whole = parse(name).element.encoding != "unsigned_integer" or "," in name
    ladder.convert(
        packed, name, group, symmetric=None if whole else symmetric, calibration=calibration
    )
    found = bits_per_weight(packed), perplexity(packed.to(device), tokens)
    print(f"{name} {symmetric} {group}: {found}", file=sys.stderr, flush=True)
    return found


def table(
    model: nn.Module,
    tokens: Tensor,
    groups: tuple[int, ...],
    names: list[str],
    device: str,
    calibration: Tensor | None,
) -> list[str]:
    """Markdown: a row for each type, in order of bits and then of perplexity."""
    base = perplexity(copy.deepcopy(model).to(device), tokens)
    titles = ["per channel" if g == -1 else f"group {g}" for g in groups]
    lines = [
        f"Unquantised: {base:.4f}. A cell has the perplexity and by how much it is above that; the "
        "bits a weight, scales and zero points included, are of the last group column.",
        "",
        f"| type | zero point | {' | '.join(titles)} | bits a weight |",
        "|---|---|" + "---:|" * (len(groups) + 1),
    ]
    rows = []
    for name, symmetric, own in requests(groups, names):
        cells, last = [], (0.0, 0.0)
        for group in own:
            last = measure(model, tokens, name, symmetric, group, device, calibration)
            cells.append(f"{last[1]:.4f} (+{last[1] / base - 1:.2%})".replace("+-", "-"))
        if own == (None,):
            block = parse(name).columns
            cells = [cells[0] if g == block else "" for g in groups]
            if block not in groups:
                cells[0] = f"{last[1]:.4f} (+{last[1] / base - 1:.2%}), blocks of {block}"
        zero = "" if parse(name).element.encoding != "unsigned_integer" else "fixed"
        zero = zero if symmetric else "each group's"
        line = f"| {name} | {zero} | {' | '.join(cells)} | {last[0]:.2f} |"
        rows.append((parse(name).bits, last[1], line))
    return lines + [line for _, _, line in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="an unquantised folder")
    parser.add_argument("--tokens", type=Path, default=EXAMPLE / "val_tokens.npy")
    parser.add_argument("--windows", type=int, help="the first N only")
    parser.add_argument("--calibration", type=int, help="windows to choose codes by; 0", default=0)
    parser.add_argument("--types", nargs="*", default=[], help="all")
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS, help="-1: per channel")
    parser.add_argument("--mixtures", type=float, nargs="*", help="bits a weight")
    parser.add_argument("--measure", default="one", help="--mixtures: one type of a layer, or each")
    parser.add_argument("--choose", type=int, default=8, help="--mixtures: windows to choose by")
    parser.add_argument("--trained", type=int, metavar="STEPS", help=f"of {BATCH} windows")
    parser.add_argument("--learned-scales", type=int, metavar="STEPS", help="of --batch windows")
    parser.add_argument("--batch", type=int, default=BATCH, help="--learned-scales: a step's")
    parser.add_argument("--train-blocks", type=int, metavar="STEPS")
    parser.add_argument("--device", default="cpu", help="that measures the packed model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="where the table is written; printed otherwise")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.model is None:
        model, what = example(), "examples/tiny-llama-gptq, dequantised and rotated"
    else:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        what = options.model.name
    every = load_tokens(options.tokens)
    tokens, rest = every[: options.windows], every[options.windows or len(every) :]
    if len(rest) < options.calibration:
        parser.error(f"--windows leaves {len(rest)} of {len(every)} windows to calibrate by")
    calibration = spread(rest, options.calibration) if options.calibration else None
    arguments = [Path(arg).name if Path(arg).is_absolute() else arg for arg in sys.argv[1:]]
    types = candidates_of(options.types or ["uint2", "uint3", "uint4"], options.groups[0])
    if options.trained:
        if calibration is None:
            parser.error("--trained needs --calibration, to begin with calibrated weights")
        found = trainings(
            model, tokens, types, rest, calibration, steps=options.trained, device=options.device
        )
    elif options.learned_scales:
        found = scales_learned(
            model, tokens, types, rest,
            steps=options.learned_scales, batch=options.batch, device=options.device,
        )  # fmt: skip
    elif options.train_blocks:
        if calibration is None:
            parser.error("--train-blocks needs --calibration")
        found = blocks_trained(
            model, tokens, types, calibration, steps=options.train_blocks, device=options.device
        )
    elif options.mixtures:
        found = mixtures(
            model, tokens, types, options.mixtures, spread(rest, options.choose), calibration,
            measure=options.measure, device=options.device,
        )  # fmt: skip
    else:
        found = table(
            model, tokens, tuple(options.groups), options.types, options.device, calibration
        )
    lines = [
        f"## {what}",
        "",
        describe(" ".join(["python benchmarks/type_quality.py", *arguments])).rstrip(),
        f"- transformers {transformers.__version__}",
        f"- {len(tokens)} windows of {tokens.shape[1]} tokens, float32 activations"
        + (f"; codes chosen by {len(calibration)} others" if calibration is not None else ""),
        "",
        *found,
    ]
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
