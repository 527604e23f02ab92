"""Our own transformer encoder: embeddings, blocks, classifier."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.models.sizes import LONGEST


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an `Encoder`, whole: a config and weights are all it takes to rebuild one.

    Checkpoints and stages lean on the defaults: a new one has to mean what was there before.
    """

    vocabulary: int
    length: int
    classes: int = 2
    layers: int = 4
    heads: int = 4
    hidden: int = 64
    feedforward: int = 128
    norm: Literal["pre", "post"] = "pre"
    pool: Literal["max", "mean"] = "max"
    positions: Literal["rotary", "learned"] = "rotary"
    dropout: float = 0.0

    model_type: ClassVar[str] = "apportion-encoder"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "length", "classes", "layers", "heads", "hidden", "feedforward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.length > LONGEST:
            raise ValueError(f"length must be at most {LONGEST}, not {self.length}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not a multiple of heads={self.heads}")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.head_width}")
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', not {self.norm!r}")
        if self.pool not in ("max", "mean"):
            raise ValueError(f"pool must be 'max' or 'mean', not {self.pool!r}")
        if self.positions not in ("rotary", "learned"):
            raise ValueError(f"positions must be 'rotary' or 'learned', not {self.positions!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")

    @property
    def head_width(self) -> int:
        """Dimensions of one head."""
        return self.hidden // self.heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


class Attention(nn.Module):
    """Multi-head self-attention that works with any number of heads, none included."""

    def __init__(self, hidden: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query = nn.Linear(hidden, heads * head_width)
        self.key = nn.Linear(hidden, heads * head_width)
        self.value = nn.Linear(hidden, heads * head_width)
        self.output = nn.Linear(heads * head_width, hidden)

    def forward(self, x: Tensor, rotation: Rotation | None, mask: Tensor | None) -> Tensor:
        """Mixes tokens; with no heads left, only the output projection's bias remains."""
        if self.output.in_features == 0:
            return self.output.bias.expand_as(x)
        # The head count is read off the weights (-1), so a cut layer needs no other code.
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_width))  # [batch, length, heads, width]
            for project in (self.query, self.key, self.value)
        )
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them; with no neurons left, a bias."""

    def __init__(self, hidden: int, neurons: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, neurons)
        self.down = nn.Linear(neurons, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms each token by itself."""
        if self.down.in_features == 0:
            return self.down.bias.expand_as(x)
        output: Tensor = self.down(F.gelu(self.up(x)))
        return output


class Block(nn.Module):
    """Attention and feed-forward, each with a residual path and a norm before or after."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config.hidden, config.heads, config.head_width)
        self.feedforward = FeedForward(config.hidden, config.feedforward)
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.feedforward_norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"

    def forward(self, x: Tensor, rotation: Rotation | None, mask: Tensor | None) -> Tensor:
        """One layer of the encoder."""
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), rotation, mask))
            x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, rotation, mask)))
            x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x


class Encoder(nn.Module):
    """Token ids in, class logits out."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden, config.classes)
        nn.init.normal_(self.tokens.weight, std=1.0 / math.sqrt(config.hidden))
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.length, config.hidden)
            nn.init.normal_(self.positions.weight, std=1.0 / math.sqrt(config.hidden))
        cosine, sine = rotation_table(config.length, config.head_width)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits [batch, classes] of token ids [batch, length]; mask is 1 on real tokens."""
        length = input_ids.shape[1]
        if length > self.config.length:
            raise ValueError(f"{length} tokens are more than this encoder's {self.config.length}")
        x = self.tokens(input_ids)  # [batch, length, hidden]
        rotation: Rotation | None = (self.cosine[:length], self.sine[:length])
        if self.positions is not None:
            x, rotation = x + self.positions.weight[:length], None
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        x = self._pool(self.final_norm(x), attention_mask)  # [batch, hidden]
        logits: Tensor = self.classifier(self.dropout(x))
        return logits

    def _pool(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is None:
            return x.amax(dim=1) if self.config.pool == "max" else x.mean(dim=1)
        real = attention_mask[..., None].bool()
        if self.config.pool == "max":
            return x.masked_fill(~real, -torch.inf).amax(dim=1)
        return (x * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


# Rotary positions: a score depends on how far apart two tokens are and not on where they stand,
# which is what "the token before" means. They have no weights, so cutting a head has nothing to
# slice there.
Rotation = tuple[Tensor, Tensor]  # cosine and sine, each [length, 1, width / 2]
_BASE = 100.0  # suits lengths up to a few hundred


def rotation_table(length: int, width: int) -> Rotation:
    """The cosine and sine of each position's angles."""
    rates = _BASE ** (-torch.arange(width // 2) / (width // 2))
    angles = torch.arange(length)[:, None, None] * rates
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turns each pair of dimensions of x [batch, length, heads, width] by its position's angle."""
    cosine, sine = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)
