"""The Transformer against torch.nn.Transformer."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models.transformer import EncoderAttention, sinusoids, transformer

V, D, H, FF, PAD, LONGEST = 23, 16, 4, 24, 0, 12
ENCODER = ["self_attn.in_proj", "self_attn.out_proj", "norm1", "linear1", "linear2", "norm2"]
DECODER = [
    *ENCODER[:3],
    *("multihead_attn.in_proj", "multihead_attn.out_proj", "norm2"),
    *("linear1", "linear2", "norm3"),
]


class Oracle(nn.Module):
    """torch's own layers between embeddings and projection, without the norms behind the last."""

    def __init__(self, layers):
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True}
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.core = nn.Transformer(
            D,
            H,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(D, H, FF, **options), layers, enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(
                nn.TransformerDecoderLayer(D, H, FF, **options), layers
            ),
            batch_first=True,
        )
        self.output = nn.Linear(D, V, bias=False)

    def forward(self, source, target):
        x, y = (
            embedding(tokens) * math.sqrt(D) + sinusoids(LONGEST, D).double()[: tokens.shape[1]]
            for embedding, tokens in ((self.source, source), (self.target, target))
        )
        causal = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        return self.output(
            self.core(
                x,
                y,
                tgt_mask=causal,
                tgt_is_causal=True,
                src_key_padding_mask=source == PAD,
                memory_key_padding_mask=source == PAD,
            )
        )

    def in_unit_order(self):
        """Parameters in the order of our units; a layer's names are a weight and a bias each."""

        def layer(module, names):
            parameters = dict(module.named_parameters())
            separator = {True: "_", False: "."}
            for name in names:
                join = separator[name.endswith("in_proj")]
                yield from (parameters[f"{name}{join}{kind}"] for kind in ("weight", "bias"))

        yield self.source.weight
        for module in self.core.encoder.layers:
            yield from layer(module, ENCODER)
        yield self.target.weight
        for module in self.core.decoder.layers:
            yield from layer(module, DECODER)
        yield self.output.weight


def ours(layers=2, dropout=0.0):
    network = transformer(V, D, H, FF, layers, layers, dropout, max_length=LONGEST, pad=PAD)
    return network.block(range(len(network)), seed=3)


def tokens():
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(1, V, (3, 9), generator=generator)
    source[1, 4:] = PAD
    source[2, 7:] = PAD
    return source, torch.randint(1, V, (3, 11), generator=generator)


def logits(block, source, target, microbatch=0):
    (outputs,) = block(source, target, seed=0, microbatch=microbatch)
    return outputs


def test_one_weighted_layer_is_one_unit():
    block = ours(layers=6)
    assert len(block.units) == 93
    for unit in block.units:
        assert sum(hasattr(m, "weight") for m in unit.modules()) == 1


@pytest.mark.parametrize("layers", [1, 6])
def test_equal_to_torch(layers):
    block, oracle = ours(layers).double(), Oracle(layers).double()
    weights, theirs = list(block.parameters()), list(oracle.in_unit_order())
    assert len(theirs) == len(list(oracle.parameters()))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for target, weight in zip(theirs, weights, strict=True):
            # Away from the zeros and ones that biases and norms start from.
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            target.copy_(weight)

    source, target = tokens()
    outputs, expected = logits(block, source, target), oracle(source, target)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    labels = torch.randint(V, target.shape, generator=generator).flatten()
    torch.testing.assert_close(
        torch.autograd.grad(F.cross_entropy(outputs.flatten(0, 1), labels), weights),
        torch.autograd.grad(F.cross_entropy(expected.flatten(0, 1), labels), theirs),
        rtol=1e-10,
        atol=1e-13,
    )


def test_padding_and_the_future_change_nothing():
    block = ours()
    source, target = tokens()
    whole = logits(block, source, target)
    longer = F.pad(source, (0, 3), value=PAD)
    torch.testing.assert_close(logits(block, longer, target), whole)
    other = target.clone()
    other[:, 6:] = 1
    torch.testing.assert_close(logits(block, source, other)[:, :6], whole[:, :6])


def test_dropout_is_keyed_by_unit_and_microbatch():
    block = ours(dropout=0.3)
    quiet = {"Norm", "OutputProjection"}
    assert {type(unit).__name__ for unit in block.units if not unit.stochastic} == quiet
    first, again, other = (logits(block, *tokens(), microbatch) for microbatch in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    block.eval()
    assert torch.equal(logits(block, *tokens(), 4), logits(block, *tokens(), 5))


def test_attention_weights_are_dropped_in_training():
    unit = EncoderAttention(D, H, dropout=0.5)
    x, mask = torch.randn(2, 5, D), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    assert not torch.equal(unit(x, mask, x)[0], unit(x, mask, x)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "dim 16 must be even and a multiple of heads 3"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"pad": V}, "pad 23 is not a token of a vocabulary of 23"),
        ({"encoder_layers": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"vocabulary": V, "dim": D, "heads": H, "feedforward": FF, "max_length": LONGEST}
    with pytest.raises(ValueError, match=message):
        transformer(**arguments | change)


def test_a_sentence_that_is_too_long_is_refused():
    source, target = torch.ones(1, LONGEST + 1, dtype=torch.int64), torch.ones(1, 2).long()
    with pytest.raises(ValueError, match="sentence of 13 tokens; max_length is 12"):
        logits(ours(), source, target)
