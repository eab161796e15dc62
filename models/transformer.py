"""The encoder-decoder Transformer as weight units: 6+6 layers are 93 units.

Vaswani et al., "Attention Is All You Need" (arXiv 1706.03762): norms after the residual sums, none
behind the last layer, sinusoidal positions, dropout where `torch.nn.TransformerEncoderLayer` has
it. Embeddings and the output projection are three separate weights, since a weight belongs to one
stage. Initial weights are fairseq's: projections Xavier-uniform with zero biases (the packed
query-key-value weight as one matrix), embeddings and output projection normal(0, dim^-1/2).

Boundaries, with B sentences of S source and T target tokens, d = `dim`::

    input         (source [B,S] int64, target [B,T] int64)
    encoder       (x [B,S,d], mask [B,1,1,S] bool, target)
    decoder       (y [B,T,d], mask, memory [B,S,d]), without mask and memory after their last use
    in a sublayer (branch, *boundary): `boundary` is the sublayer's input, its first member the skip
    output        (logits [B,T,V],)

`mask` is True where the source is not padding; every source needs one such token. Target positions
see themselves and what is left of them, so padding on the right of a target changes no other row.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.unit import Blueprint, Boundary, Network, Unit


def sinusoids(length: int, dim: int) -> Tensor:
    """[length, dim] with PE[p, 2i] = sin(p / 10000^(2i/dim)) and PE[p, 2i+1] the cosine."""
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(torch.get_default_dtype())


def projection(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class EmbeddingUnit(Unit):
    """Tokens to vectors: sqrt(d) times the embedding, plus the position, then dropout."""

    positions: Tensor

    def __init__(self, vocabulary: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.dropout_p = dropout
        self.register_buffer("positions", sinusoids(max_length, dim), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """[B, L] int64 -> [B, L, d]. Raises ValueError where L is beyond `max_length`."""
        length, (longest, dim) = tokens.shape[1], self.positions.shape
        if length > longest:
            raise ValueError(f"sentence of {length} tokens; max_length is {longest}: raise it")
        # The output is scaled, not the weight: a scaled weight would be a copy of its own.
        vectors: Tensor = self.embedding(tokens) * math.sqrt(dim) + self.positions[:length]
        return F.dropout(vectors, self.dropout_p, self.training)


class SourceEmbedding(EmbeddingUnit):
    """``(source, target) -> (x, mask, target)``"""

    def __init__(
        self, vocabulary: int, dim: int, max_length: int, dropout: float, pad: int
    ) -> None:
        super().__init__(vocabulary, dim, max_length, dropout)
        self.pad = pad

    def forward(self, source: Tensor, target: Tensor) -> Boundary:
        return self.embed(source), (source != self.pad)[:, None, None, :], target


class TargetEmbedding(EmbeddingUnit):
    """``(x, mask, target) -> (y, mask, memory)``; the encoder's last x is the memory."""

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Boundary:
        return self.embed(target), mask, x


class AttentionUnit(Unit):
    """The packed query-key-value projection of an attention, then the attention itself."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.projection = projection(dim, 3 * dim)
        self.heads = heads
        self.dropout_p = dropout

    def split(self, packed: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[B, L, parts*d] -> `parts` tensors [B, heads, L, d/heads]"""
        batch, length, _ = packed.shape
        split = packed.view(batch, length, parts, self.heads, -1)
        return split.permute(2, 0, 3, 1, 4).unbind()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, L, d], each query over the keys that `mask` allows, or those left of it if None."""
        heads = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout_p if self.training else 0.0,
            is_causal=mask is None,
        )
        return heads.transpose(1, 2).flatten(2)


class EncoderAttention(AttentionUnit):
    """``(x, mask, target) -> (attention, x, mask, target)``"""

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Boundary:
        q, k, v = self.split(self.projection(x), 3)
        return self.attend(q, k, v, mask), x, mask, target


class DecoderAttention(AttentionUnit):
    """``(y, mask, memory) -> (attention, y, mask, memory)``, causal"""

    def forward(self, y: Tensor, mask: Tensor, memory: Tensor) -> Boundary:
        q, k, v = self.split(self.projection(y), 3)
        return self.attend(q, k, v), y, mask, memory


class CrossAttention(AttentionUnit):
    """``(y, mask, memory) -> (attention, y, mask, memory)``, queries from y, the rest from memory.

    `last` drops mask and memory, which nobody needs any more, from the outgoing boundary.
    """

    def __init__(self, dim: int, heads: int, dropout: float, last: bool) -> None:
        super().__init__(dim, heads, dropout)
        self.last = last

    def forward(self, y: Tensor, mask: Tensor, memory: Tensor) -> Boundary:
        weight, bias, dim = self.projection.weight, self.projection.bias, y.shape[-1]
        (q,) = self.split(F.linear(y, weight[:dim], bias[:dim]), 1)
        k, v = self.split(F.linear(memory, weight[dim:], bias[dim:]), 2)
        attention = self.attend(q, k, v, mask)
        return (attention, y) if self.last else (attention, y, mask, memory)


class FeedForward(Unit):
    """The widening half: ``(x, *rest) -> (dropout(relu(linear(x))), x, *rest)``"""

    def __init__(self, dim: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.linear = projection(dim, feedforward)
        self.dropout_p = dropout

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        return F.dropout(F.relu(self.linear(x)), self.dropout_p, self.training), x, *rest


class ResidualLinear(Unit):
    """End of a sublayer: ``(branch, skip, *rest) -> (skip + dropout(linear(branch)), *rest)``"""

    def __init__(self, inputs: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.linear = projection(inputs, dim)
        self.dropout_p = dropout

    def forward(self, branch: Tensor, skip: Tensor, *rest: Tensor) -> Boundary:
        return skip + F.dropout(self.linear(branch), self.dropout_p, self.training), *rest


class Norm(Unit):
    """``(x, *rest) -> (layer norm of x, *rest)``"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, *rest: Tensor) -> Boundary:
        return self.norm(x), *rest


class OutputProjection(Unit):
    """``(y [B,T,d],) -> (logits [B,T,V],)``, no bias"""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, vocabulary, bias=False)
        nn.init.normal_(self.linear.weight, std=dim**-0.5)

    def forward(self, y: Tensor) -> Boundary:
        return (self.linear(y),)


def transformer(
    vocabulary: int,
    dim: int,
    heads: int,
    feedforward: int,
    encoder_layers: int = 6,
    decoder_layers: int = 6,
    dropout: float = 0.1,
    *,
    max_length: int,
    pad: int = 0,
) -> Network:
    """``(source [B,S] int64, target [B,T] int64) -> (logits [B,T,vocabulary],)``

    `max_length` bounds S and T; `pad` is the token that fills up the right of a source.

    Raises ValueError where `dim` is odd or not a multiple of `heads`, a size is below 1, `dropout`
    is outside [0, 1), or `pad` is no token.
    """
    sizes = (vocabulary, dim, heads, feedforward, encoder_layers, decoder_layers, max_length)
    if min(sizes) < 1:
        raise ValueError(f"every size of a transformer must be at least 1, got {sizes}")
    if dim % heads or dim % 2:
        raise ValueError(f"dim {dim} must be even and a multiple of heads {heads}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; it must be at least 0 and below 1")
    if not 0 <= pad < vocabulary:
        raise ValueError(f"pad {pad} is not a token of a vocabulary of {vocabulary}")

    norm = partial(Norm, dim)
    attention_out = partial(ResidualLinear, dim, dim, dropout)
    tail: list[Blueprint] = [
        partial(FeedForward, dim, feedforward, dropout),
        partial(ResidualLinear, feedforward, dim, dropout),
        norm,
    ]
    units: list[Blueprint] = [partial(SourceEmbedding, vocabulary, dim, max_length, dropout, pad)]
    for _ in range(encoder_layers):
        units += [partial(EncoderAttention, dim, heads, dropout), attention_out, norm, *tail]
    units.append(partial(TargetEmbedding, vocabulary, dim, max_length, dropout))
    for layer in range(decoder_layers):
        cross = partial(CrossAttention, dim, heads, dropout, last=layer == decoder_layers - 1)
        units += [partial(DecoderAttention, dim, heads, dropout), attention_out, norm]
        units += [cross, attention_out, norm, *tail]
    units.append(partial(OutputProjection, dim, vocabulary))
    return Network("transformer", tuple(units))
