# SPDX-License-Identifier: Apache-2.0
"""Pipelines of transformers on folders with packed layers, beside the dequantised weights."""

import numpy
import pytest
import torch
from hf_models import load
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
    pipeline,
)

import ladder
from ladder.integrations.transformers import LadderConfig

TEXT = "In the beginning"
LENGTH = {"max_new_tokens": 8, "do_sample": False}


def count(pipe):
    return sum(isinstance(module, ladder.Linear) for module in pipe.model.modules())


@pytest.mark.parametrize("options", [{}, {"device_map": "auto"}], ids=["", "device_map"])
def test_text_is_generated_as_by_the_model(ladder_folder, options):
    from transformers import AutoTokenizer

    pipe = pipeline("text-generation", str(ladder_folder), dtype=torch.float32, **options)
    assert count(pipe) == 56
    (given,) = pipe(TEXT, **LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(ladder_folder)
    tokens = load(ladder_folder).generate(**tokenizer(TEXT, return_tensors="pt"), **LENGTH)
    assert given["generated_text"] == tokenizer.decode(tokens[0], skip_special_tokens=True)


def test_a_pipeline_may_quantise_while_it_loads(dequantised_folder):
    options = {"quantization_config": LadderConfig("uint8", 64)}
    pipe = pipeline("text-generation", str(dequantised_folder), model_kwargs=options)
    assert count(pipe) == 56 and pipe(TEXT, **LENGTH)


def test_features_are_those_of_the_dequantised_weights(ladder_folder, dequantised_folder):
    made = [
        pipeline("feature-extraction", str(folder), dtype=torch.float32)
        for folder in (ladder_folder, dequantised_folder)
    ]
    assert [count(pipe) for pipe in made] == [56, 0]
    given, truth = (torch.tensor(pipe(TEXT)) for pipe in made)
    # Sums of float32 in another order, through eight layers.
    assert (given - truth).abs().max() <= 1e-4 * truth.abs().max()


def test_speech_is_recognised_as_by_the_dequantised_weights(tmp_path):
    tokens = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    times = [f"<|{0.02 * step:.2f}|>" for step in range(101)]
    vocabulary = {t: i for i, t in enumerate([*sorted(ByteLevel.alphabet()), *tokens, *times])}
    end, start = (vocabulary[token] for token in tokens[:2])
    sides = ("encoder", "decoder")
    config = WhisperConfig(
        vocab_size=len(vocabulary), d_model=64, num_mel_bins=16, max_source_positions=100,
        max_target_positions=64, decoder_start_token_id=start, pad_token_id=end, bos_token_id=end,
        eos_token_id=end, suppress_tokens=[], begin_suppress_tokens=[],
        **{f"{side}_{what}": n for side in sides
           for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 128))},
    )  # fmt: skip
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(tmp_path / "model")
    for each in (
        WhisperTokenizer(vocab=vocabulary, merges=[]),
        WhisperFeatureExtractor(feature_size=16, chunk_length=2),
    ):
        for name in ("model", "packed", "dense"):
            each.save_pretrained(tmp_path / name)
    kind = WhisperForConditionalGeneration
    packed = kind.from_pretrained(tmp_path / "model", quantization_config=LadderConfig("uint4", 32))
    packed.save_pretrained(tmp_path / "packed")
    packed.dequantize().save_pretrained(tmp_path / "dense")
    sound = {"raw": numpy.sin(numpy.arange(16000) * 0.05).astype("float32"), "sampling_rate": 16000}
    said = []
    for name, layers in (("packed", 16), ("dense", 0)):
        pipe = pipeline("automatic-speech-recognition", str(tmp_path / name))
        assert count(pipe) == layers
        features = pipe.feature_extractor(
            sound["raw"], sampling_rate=16000, return_tensors="pt"
        ).input_features
        options = {"max_new_tokens": 8, "num_beams": 1}
        said.append(
            (
                pipe({**sound}, generate_kwargs=options)["text"],
                pipe.model.generate(features, **options).tolist(),
            )
        )
    assert said[0] == said[1]
