# SPDX-License-Identifier: Apache-2.0
"""``ladder explain``, and that docs/compiler.md shows what it prints.

After a change of the compiler ``make golden`` renews the blocks; the difference belongs to the
review.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ladder
from ladder._C import devices, explain
from ladder.cli import main
from ladder.cli.spelling import spelled

DOCUMENT = Path(__file__).parents[2] / "docs" / "compiler.md"
#: Before a block: <!-- explain: SECTION --> for all of it, <!-- explain: SECTION WORD COUNT --> for
#: so many lines from the first that has the word.
BLOCK = re.compile(r"<!-- explain: (\S+)(?: (\S+) (\d+))? -->\n```\n(.*?)```\n", re.S)
ORDER = ["tType", "expression", "matmul", "device", "transforms"]


def arguments(**changes):
    named = {"m": 16, "n": 4096, "k": 4096, "weight": "uint4", "group": 128, "device": "h200"}
    named |= changes
    return [
        "explain",
        *(part for name, value in named.items() for part in (f"--{name}", str(value))),
    ]


def run(capsys, *more, **changes):
    with pytest.raises(SystemExit) as stop:
        main([*arguments(**changes), *more])
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def document_sections():
    text = DOCUMENT.read_text()
    command = re.search(r"^ladder explain (.*)$", text, re.M)[1].split()
    named = dict(zip(command[::2], command[1::2], strict=True))
    weight = spelled(named["--weight"], int(named["--group"]), None, None)
    shape = [int(named[name]) for name in ("--m", "--n", "--k")]
    return dict(explain(*shape, weight, "float16", named["--device"]))


def test_the_blocks_of_the_compiler_page_are_what_explain_prints(document_sections):
    text = DOCUMENT.read_text()
    shown = {block[1] for block in BLOCK.finditer(text)}
    assert shown == set(document_sections), "a section of explain is not on the page"

    def renewed(block):
        section, word, count, _ = block.groups()
        lines = document_sections[section].rstrip("\n").split("\n")
        if word is not None:
            first = next(i for i, line in enumerate(lines) if word in line)
            lines = lines[first : first + int(count)]
        head = block[0].split("\n", 1)[0]
        return "\n".join([head, "```", *lines, "```", ""])

    new = BLOCK.sub(renewed, text)
    if os.environ.get("LADDER_RENEW_GOLDEN"):
        DOCUMENT.write_text(new)
    assert DOCUMENT.read_text() == new


def test_explain_prints_every_value_and_the_source_when_asked(capsys):
    text = run(capsys)
    titles = re.findall(r"^== (\w+) ==$", text, re.M)
    assert titles == [*ORDER, "candidates", "bound", "schedule", "program", "traffic"]
    assert "granularity 16 B" in text
    with_source = run(capsys, "--source")
    assert with_source.startswith(text.rstrip("\n"))
    assert "__global__" in with_source and "__global__" not in text


def test_explain_gives_every_candidate_with_its_cost_or_its_reason(capsys):
    sections = json.loads(run(capsys, "--all", "--json"))
    head, *lines = sections["candidates"].splitlines()
    total, kept = map(int, re.findall(r"\d+", head))
    costs = [line for line in lines if re.match(r"[\d.e+]+ us \(memory ", line)]
    dropped = [line for line in lines if re.match(r"  (?!\d+ x ).*: tokens ", line)]
    assert len(costs) == kept
    assert len(dropped) == total - kept


def test_explain_prints_the_schedules_of_a_chain_where_the_device_has_them(capsys):
    alone = json.loads(run(capsys, "--all", "--json"))
    sections = json.loads(run(capsys, "--all", "--json", "--source", "--dependent-launch"))
    assert "dependent launch" not in alone["candidates"]
    assert sections["candidates"].replace(", dependent launch", "") == alone["candidates"]
    assert sections["schedule"] == alone["schedule"].replace(", 1 per", ", dependent launch, 1 per")
    assert sections["program"].count("dependent_wait") == 1
    assert "dependent_wait();" in sections["source"]
    assert main([*arguments(device="a100"), "--dependent-launch"]) == 1
    assert "a100 starts no kernel before" in capsys.readouterr().err


def test_explain_names_the_place_of_scales_where_it_is_not_the_usual(capsys):
    sections = json.loads(run(capsys, "--all", "--json", weight="nvfp4", group=0))
    _, *lines = sections["candidates"].split("dropped:")[0].splitlines()
    sums = [line for line in lines if ", scaled sums," in line]
    assert 0 < len(sums) < len(lines)
    for line in sums:
        assert line.split(": tokens", 1)[1].replace(", scaled sums", "") in sections["candidates"]
    assert "scaled" not in sections["schedule"]
    usual = json.loads(run(capsys, "--all", "--json"))
    assert "scaled" not in usual["candidates"]


@pytest.mark.parametrize("device", ["x86_avx2", "x86_avx512"])
def test_explain_of_a_device_without_a_target_ends_with_the_reason(capsys, device):
    text = run(capsys, device=device)
    assert re.findall(r"^== (\w+) ==$", text, re.M) == [*ORDER, "bound", "program"]
    assert f"no target writes kernels for {device}" in text


@pytest.mark.parametrize("m", [8193, 20000])
def test_explain_of_more_tokens_than_kernels_serve_converts_once(capsys, m):
    text = run(capsys, m=m)
    places = re.search(r"weights are converted once in global memory\n((?:  .*\n)+)", text)[1]
    assert "us; kernels that do serve at most 8192 tokens\n" in places
    why = f"weights of {m} tokens are converted once in global memory: kernels that do serve at"
    assert f"such as {why} most 8192 tokens" in text
    assert f"{m} tokens: the weight is dequantised, and a library multiplies" in text


@pytest.mark.parametrize(
    ("m", "weight", "instruction"),
    [(16, "uint4", "mma.m16n8k16.f16"), (1, "uint2", "mma.m16n8k32.s8")],
)
def test_explain_says_of_the_schedule_what_was_decided_before_it(capsys, m, weight, instruction):
    sections = json.loads(run(capsys, "--json", m=m, weight=weight, n=28672, k=8192))
    decided = sections["transforms"]
    place = re.search(r"^weights are converted (.*)$", decided, re.M)[1]
    hint = re.search(r"^hint: (.*)$", decided, re.M)[1]
    schedule, follows = sections["schedule"].splitlines()
    assert follows == f"by {instruction} in tiles of {hint}; weights are converted {place}"
    digits = ", digits," in schedule
    assert decided.startswith(f"core: {instruction},") != digits
    assert digits == (instruction == "mma.m16n8k32.s8")


@pytest.mark.parametrize("m", [1, 16, 64])
def test_explain_shows_a_kernel_for_turing(capsys, m):
    sections = json.loads(run(capsys, "--json", "--source", m=m, device="t4"))
    assert sections["schedule"].splitlines()[1].startswith("by 2 x mma.m16n8k8.f16 in tiles of ")
    kernel = sections["source"].split('extern "C" __global__')[1]
    assert "mma_f16(" in kernel and "copy_async(" in kernel


@pytest.mark.parametrize("m", [1, 16, 64])
def test_explain_shows_a_kernel_for_volta(capsys, m):
    sections = json.loads(run(capsys, "--json", "--source", m=m, device="v100"))
    assert sections["schedule"].splitlines()[1].startswith("by 4 x mma.m8n8k4.f16 in tiles of ")
    assert "mma_quad_pairs_f16(" in sections["source"].split('extern "C" __global__')[1]


@pytest.mark.parametrize(
    ("device", "instruction"),
    [
        ("h200", "mma.m16n8k32.s8"),
        ("mi210", "v_mfma_i32_16x16x16i8"),
        ("mi300x", "v_mfma_i32_16x16x32_i8"),
        ("mi355x", "v_mfma_i32_16x16x64_i8"),
    ],
)
def test_explain_shows_products_of_rounded_activations(capsys, device, instruction):
    options = ("--json", "--activation-type", "int8")
    sections = json.loads(run(capsys, *options, m=64, device=device))
    assert "x[m, k] s8" in sections["expression"]
    assert ", bytes, " in sections["schedule"]
    assert sections["schedule"].splitlines()[1].startswith(f"by {instruction} in tiles of ")


def test_explain_says_why_activations_are_not_rounded(capsys):
    assert main([*arguments(m=64), "--activation-type", "int4"]) == 1
    assert 'activation_type is "int4"' in capsys.readouterr().err
    fp8 = arguments(m=64, weight="float8_e4m3,channel", group=0, device="mi210")
    assert main([*fp8, "--activation-type", "float8_e4m3"]) == 1
    assert "no tile program multiplies e4m3 on mi210" in capsys.readouterr().err


@pytest.mark.parametrize("device", [row[0] for row in devices.rows()])
def test_a_bound_without_a_rate_is_of_data_alone(device):
    """Of each device there is a bound, or it is said what has no kernel. A device without a rate of
    such products has the bound of their data, which is lower than that of slower products."""
    uint4, shape = spelled("uint4", 128, None), (64, 4096, 4096)
    try:
        sections = dict(explain(*shape, uint4, "float16", device, activation_type="int8"))
    except NotImplementedError as error:
        assert f"no tile program multiplies s8 on {device}" in str(error)
        return
    bound = sections["bound"]
    if "of data alone" not in bound:
        return
    assert f"of data alone: {device} has no known rate of int8 products\n" in bound
    of_floats = dict(explain(*shape, uint4, "float16", device))["bound"]
    rounded, as_it_is = (
        float(re.search(r"less than (\S+) us", text)[1]) for text in (bound, of_floats)
    )
    assert 0 < rounded <= as_it_is


@pytest.mark.parametrize(("device", "scalar"), [("mi300x", "e4m3fnuz"), ("mi355x", "e4m3")])
def test_explain_shows_the_float8_that_a_machine_reads(capsys, device, scalar):
    options = ("--json", "--source", "--activation-type", "float8_e4m3")
    of = {"m": 4096, "weight": "float8_e4m3,channel", "group": 0, "device": device}
    sections = json.loads(run(capsys, *options, **of))
    assert "x[m, k] e4m3 " in sections["expression"]
    assert f"global x {scalar} " in sections["program"]
    assert f"mma_{scalar}(" in sections["source"]


def test_explain_of_bfloat16_on_turing_says_that_nothing_multiplies_it(capsys):
    assert main([*arguments(device="t4"), "--activation", "bfloat16"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "no instruction of t4 multiplies bfloat16" in said


def test_explain_names_the_devices_when_there_is_no_such(capsys):
    assert main(arguments(device="h300")) == 1
    assert "h200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("weight", "group", "zero", "whole"),
    [
        ("uint4", 128, None, "uint4,group=128,scale=float16,zero=midpoint"),
        ("uint4", 128, "integer", "uint4,group=128,scale=float16,zero=integer"),
        ("nf4", 64, None, "nf4,group=64,scale=float16"),
        ("int4", -1, None, "int4,channel,scale=float16"),
        ("mxfp4", 0, None, "mxfp4"),
        ("mxfp4", None, None, "mxfp4"),
        ("uint4", None, None, "uint4,group=128,scale=float16,zero=midpoint"),
        ("fp8", None, None, "fp8,group=128,scale=float16"),
        ("int8", 0, None, "int8"),
        ("float16", None, None, "float16"),
        ("int8,scale=float16", None, None, "int8,scale=float16"),
        ("int8,channel,scale=float16", 0, None, "int8,channel,scale=float16"),
    ],
)
def test_the_options_spell_a_ttype(weight, group, zero, whole):
    assert spelled(weight, group, None, zero) == whole


@pytest.mark.parametrize("weight", ["mxfp4", "uint4,group=64,scale=float16"])
def test_options_that_a_whole_ttype_would_override_are_refused(weight):
    with pytest.raises(ladder.InvalidArgument, match=f'--group is 128, but weight "{weight}" says'):
        spelled(weight, 128, None)
    with pytest.raises(ladder.InvalidArgument, match="--zero is integer, but"):
        spelled(weight, 0, None, "integer")
    with pytest.raises(ladder.InvalidArgument, match="--scale is bfloat16, but weight"):
        spelled(weight, 0, "bfloat16")


def test_a_scale_is_taken_with_groups_and_refused_without():
    assert spelled("int4", 64, "bfloat16") == "int4,group=64,scale=bfloat16"
    with pytest.raises(ladder.InvalidArgument, match="--scale is bfloat16, but --group is 0"):
        spelled("int4", 0, "bfloat16")


@pytest.mark.parametrize(("name", "value"), [("m", 0), ("n", 2**31), ("k", 10**22)])
def test_extents_that_no_kernel_counts_are_refused(capsys, name, value):
    assert main(arguments(**{name: value})) == 1
    assert f"--{name} is {value}, not from 1 to 2147483647" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["n", "k"])
def test_the_largest_layer_is_explained_but_for_what_would_take_minutes(capsys, size):
    """Its blocks have a million rounds; counting the accesses of each took most of a minute."""
    text = run(capsys, **{size: 2**31 - 1, "m": 1})
    assert "not counted: a block goes through" in text and ", more than 262144" in text
    assert "not counted" not in run(capsys)


def test_tensor_memory_is_proposed_to_who_asks_for_what_nobody_has_run():
    """The environment is read once, so each answer takes a process."""
    command = [sys.executable, "-m", "ladder", *arguments(m=256, device="b200")]
    schedule = ", warpgroups, producers, tensor memory, k-tiles "

    def printed(**environment):
        named = {k: v for k, v in os.environ.items() if k != "LADDER_UNPROVEN"} | environment
        done = subprocess.run(command, env=named, capture_output=True, text=True, check=True)
        return done.stdout

    plain = printed()
    assert schedule not in plain
    assert printed(LADDER_UNPROVEN="0") == plain
    asked = printed(LADDER_UNPROVEN="1")
    kept, dropped = asked.split("\ndropped:\n", 1)
    assert schedule in kept
    assert "one set of sums: no group's scale fits" in dropped


def test_a_residual_is_an_operand_of_the_kernel(capsys):
    out = run(capsys, "--residual", "--source", m=8, n=512, k=128)
    assert "f16 = residual[m, n] f16 + sum k=128" in out
    assert "residual" in out.split("== source ==")[1]
    assert "residual" not in run(capsys, "--source", m=8, n=512, k=128)


def test_codes_of_y_are_made_by_the_kernel(capsys):
    shape = {"m": 64, "n": 512, "k": 128}
    of_codes = ("--activation-type", "int8", "--codes-of-y", "float8_e4m3")
    out = run(capsys, *of_codes, "--source", **shape)
    assert "e4m3 = codes of 1/sy f32 * t[m] f32 * sum k=128" in out
    assert "y_scale" in out.split("== source ==")[1]
    of_int4 = ("--activation-type", "int8", "--codes-of-y", "int4")
    assert main([*arguments(**shape), *of_int4]) == 1
    assert 'codes of y are "int4", not int8 or float8_e4m3' in capsys.readouterr().err
    assert main([*arguments(**shape), "--codes-of-y", "int8"]) == 1  # no session has such kernels
    assert "without --activation-type x comes as numbers" in capsys.readouterr().err


def test_a_batch_has_kernels_for_all_of_its_weights(capsys):
    out = run(capsys, "--batch", "16", m=300, n=512, k=128)
    assert "batch of 16: y[m<=300, n=512]" in out
    items = re.search(r"== items ==\n(.*)", out)[1]
    rows, times = (int(n) for n in re.search(r"16: (?:(\d+) times )?y\[m<=(\d+)", items).groups())
    assert rows * times >= 300 > (rows - 1) * times
    assert re.search(rf"for each item of {times} rows of 16 weights", out)


def test_a_convolution_has_kernels_that_read_windows(capsys):
    more = ("--conv", "3x3", "--image", "28x20", "--padding", "1", "--stride", "2", "--source")
    out = run(capsys, *more, m=2, n=128, k=64, group=64)
    assert "x[m, k] of windows 3x3 of 28x20x64, stride 2x2, padding 1x1" in out
    assert "sum k=576" in out and "y[m<=280" in out
    assert "in_y < 28u && in_x < 20u" in out


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--conv", "3x3"), '--image is "", not two sizes'),
        (("--conv", "\u00b2x3", "--image", "8x8"), '--conv is "\u00b2x3", not two sizes'),
        (("--stride", "2"), "--stride is 2, but without --conv there is no window"),
        (("--padding", "1"), "--padding is 1, but without --conv there is no window"),
        (("--conv", "3", "--image", "8x8"), '--conv is "3", not two sizes'),
        (("--conv", "9x9", "--image", "8x8"), "a window of 9 along y does not fit 8"),
        (("--conv", "3x3", "--image", "8x8", "--batch", "2"), "a batch of 2 convolutions"),
    ],
)
def test_windows_that_cannot_be_are_refused(capsys, more, why):
    assert main([*arguments(k=64, group=64), *more]) == 1
    assert why in capsys.readouterr().err
