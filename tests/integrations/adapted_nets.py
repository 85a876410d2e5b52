# SPDX-License-Identifier: Apache-2.0
"""Two packed layers, the dense layers of the same values, and a configuration of PEFT for each kind
of adapters."""

import pytest
import torch
from torch import nn

import ladder
from ladder.integrations.peft_kinds import NEEDS_BACKEND

K, N, OUT = 96, 32, 64
#: Of each kind: the name of its configuration, and the fields that small layers need.
SUPPORTED = {
    "ADALORA": ("AdaLoraConfig", {"total_step": 10}),
    "BEFT": ("BeftConfig", {}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 8}),
    "C3A": ("C3AConfig", {"block_size": 16}),
    "DEFT": ("DeftConfig", {"r": 4}),
    "DELORA": ("DeloraConfig", {"r": 4}),
    "FOURIERFT": ("FourierFTConfig", {"n_frequency": 20}),
    "GRALORA": ("GraloraConfig", {"r": 4, "gralora_k": 2}),
    "HRA": ("HRAConfig", {"r": 4}),
    "IA3": ("IA3Config", {"feedforward_modules": ["second"]}),
    "LILY": ("LilyConfig", {"r": 4}),
    "LOHA": ("LoHaConfig", {"r": 4}),
    "LOKR": ("LoKrConfig", {"r": 4}),
    "MISS": ("MissConfig", {"r": 4}),
    "OFT": ("OFTConfig", {"oft_block_size": 8}),
    "POLY": ("PolyConfig", {"r": 4}),
    "PSOFT": ("PsoftConfig", {"r": 4}),
    "PVERA": ("PveraConfig", {"r": 4}),
    "RANDLORA": ("RandLoraConfig", {"r": 4}),
    "ROAD": ("RoadConfig", {"group_size": 32}),
    "SHIRA": ("ShiraConfig", {"r": 4}),
    "TINYLORA": ("TinyLoraConfig", {}),
    "UNILORA": ("UniLoraConfig", {"r": 4, "theta_d_length": 32}),
    "VBLORA": ("VBLoRAConfig", {"r": 4, "num_vectors": 16, "vector_length": 16}),
    "VERA": ("VeraConfig", {"r": 4}),
    "WAVEFT": ("WaveFTConfig", {"n_frequency": 20}),
}
#: PEFT merges no other.
MERGED = [kind for kind in SUPPORTED if kind not in ("LILY", "POLY")]
REFUSED = {
    "GLORA": ("GloraConfig", {"r": 4}),
    "HIRA": ("HiraConfig", {"r": 4}),
    "OSF": ("OSFConfig", {}),
    "PEANUT": ("PeanutConfig", {"r": 4}),
    "SUPERTUNING": ("SupertuningConfig", {}),
}


class Net(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, **options):
        return self.second(torch.tanh(self.first(x, **options)), **options)


class Beside(Net):
    """Two layers of one x."""

    def forward(self, x, **options):
        return torch.cat([self.first(x, **options), self.second(x, **options)], -1)


def packed_net():
    torch.manual_seed(0)
    first, second = nn.Linear(K, N), nn.Linear(N, OUT, bias=False)
    return Net(
        ladder.Linear.from_linear(first, "uint4,group=32,scale=float16,zero=integer"),
        ladder.Linear.from_linear(second, "nf4,group=8,scale=float16"),
    )


def dense_net():
    net = packed_net()
    return Net(net.first.dequantize(), net.second.dequantize())


def x_of(*shape):
    return torch.randn(*shape, K, generator=torch.Generator().manual_seed(2))


def close(one, other):
    """But for the order of sums of up to 96 products in float32, in a few layers."""
    return (one - other).norm() <= 1e-5 * other.norm()


def layers(model):
    return [model.base_model.model.first, model.base_model.model.second]


def config_of(kind, targets=("first", "second"), **options):
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer

    name, fields = (SUPPORTED | REFUSED)[kind]
    if not hasattr(peft, name):
        pytest.skip(f"this release of PEFT has no {name}")
    if kind in NEEDS_BACKEND and not hasattr(BaseTunerLayer, "quantization_backend"):
        pytest.skip(f"{kind} needs another release of PEFT")
    return getattr(peft, name)(target_modules=list(targets), **fields | options)


def adapted(kind, net, *targets, **options):
    """The seed decides what PEFT draws: indices, projections, dropped parts."""
    import peft

    torch.manual_seed(5)
    return peft.get_peft_model(net, config_of(kind, *targets, **options))


def mixed(net, kinds):
    """``net`` with adapters of two kinds on each layer, both active, which are not near zero."""
    import peft

    torch.manual_seed(5)
    configs = [
        peft.LoraConfig(r=4, target_modules=["first", "second"])
        if kind == "LORA"
        else config_of(kind)
        for kind in kinds
    ]
    model = peft.get_peft_model(net, configs[0], mixed=True)
    model.add_adapter("other", configs[1])
    model.set_adapter(["default", "other"])
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.rand(parameter.shape, generator=source) * 0.3)
    return model


def moved(model, integers=False):
    """With other numbers in every parameter of an adapter, trained or not."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model.base_model.prefix in name and integers:
                parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=source))
            elif model.base_model.prefix in name:
                parameter.add_((torch.rand(parameter.shape, generator=source) - 0.3) * 0.5)
    return model


def options_of(kind, x):
    return {"task_ids": torch.zeros(len(x), dtype=torch.int64)} if kind == "POLY" else {}
