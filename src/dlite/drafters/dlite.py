"""DLite: a drafter that keeps no history (arXiv 2610.23787).

Each round it reads n target layers at the pivot, the anchor token and K placeholders; drafts all K in one
bidirectional pass; restores the order inside the block with a low-rank recurrent head; and forgets.
The training ``forward`` and the decoding ``propose`` stand side by side over the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dlite.drafters.base import Chooser
from dlite.nn.backbone import Backbone, BackboneConfig, Context
from dlite.nn.cpu import PackedLinear, can_pack, freeze_for_cpu
from dlite.nn.heads import LowRankRNN, svd_start
from dlite.nn.layout import BlockLayout
from dlite.target.base import Target
from dlite.types import Proposal, View


@dataclass(frozen=True)
class DLiteConfig:
    """Everything that fixes a DLite network.

    ``anchor_group`` 2 is the ``dlite_v2`` form: the token at the pivot joins the query and primes the state.
    ``placeholder`` "token" reads row ``mask_token_id`` of the target's embedding, "learned" trains a vector from it.
    ``draft_vocab`` lists the token ids the head can say; None is the whole vocabulary.
    ``last_tap`` says whether the last layer's tap is taken before or after the target's final norm.
    ``history_window`` > 0 makes the training-only teacher of the two-stage recipe: it also sees that many
    fused positions before the pivot.
    """

    backbone: BackboneConfig
    vocab_size: int
    K: int
    taps: tuple[int, ...]
    num_target_layers: int
    rank: int
    mask_token_id: int
    anchor_group: Literal[1, 2] = 1
    placeholder: Literal["learned", "token"] = "learned"
    draft_vocab: tuple[int, ...] | None = None
    last_tap: Literal["raw", "normed"] = "raw"
    history_window: int = 0


@dataclass(frozen=True)
class BlockInput:
    """What N training blocks read.

    taps [N,n,D]   anchor [N]   before [N]   previous [N,K] the token before each draft, the anchor first (K may be
    smaller than the drafter's own); history is for the training-only teacher.
    """

    taps: Tensor
    anchor: Tensor
    before: Tensor
    previous: Tensor
    history: History | None = None


@dataclass(frozen=True)
class History:
    """Positions before the pivots, shared: taps [P,n,D]; per block the rows, distances to the anchor and a mask [N,W]."""

    taps: Tensor
    rows: Tensor
    distance: Tensor
    real: Tensor


class DLite(nn.Module):
    """The drafter's network. The target's embedding is borrowed through ``attach`` and never saved or trained."""

    name = "dlite"
    draft_ids: Tensor | None
    draft_rows: Tensor | None

    def __init__(self, config: DLiteConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = config.taps
        self.max_drafts = config.K
        self.layout = BlockLayout(config.K, config.anchor_group)
        D, eps = config.backbone.hidden_size, config.backbone.rms_norm_eps
        backbone = Backbone(config.backbone)
        self.layers, self.norm = backbone.layers, backbone.norm
        self.layer_depth_embedding = nn.Embedding(config.num_target_layers, D)
        self.context_norm = nn.RMSNorm(D, eps=eps)
        words = config.vocab_size if config.draft_vocab is None else len(config.draft_vocab)
        # With a reduced vocabulary one more row of the previous-token table stands for every other token.
        self.sequential_head = LowRankRNN(D, config.rank, words, words + (config.draft_vocab is not None))
        self.placeholder = nn.Parameter(torch.zeros(D)) if config.placeholder == "learned" else None
        if config.history_window:
            self.history_fuse = nn.Linear(len(config.taps) * D, D, bias=False)
            self.history_norm = nn.RMSNorm(D, eps=eps)
        self._backbone = [backbone]  # in a list: not a second owner of the layers
        self._embedding: list[Target] = []
        ids, rows = self.id_maps(config)
        self.register_buffer("draft_ids", ids, persistent=False)
        self.register_buffer("draft_rows", rows, persistent=False)

    @staticmethod
    def id_maps(config: DLiteConfig) -> tuple[Tensor | None, Tensor | None]:
        """(draft row -> token id [V'], token id -> row of the previous-token table [V]), None without a draft vocabulary.

        Tokens outside the draft vocabulary share the table's last row.
        """
        if config.draft_vocab is None:
            return None, None
        ids = torch.tensor(config.draft_vocab)
        rows = torch.full((config.vocab_size,), len(ids))
        rows[ids] = torch.arange(len(ids))
        return ids, rows

    def attach(self, target: Target) -> DLite:
        """Borrow the target's embedding (and, for ``last_tap: normed``, its final norm)."""
        self._embedding = [target]
        return self

    @torch.no_grad()
    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights: small normal matrices, zero depth table, head from the SVD of the target's matrices."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0, 0.02, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
        self.layer_depth_embedding.weight.zero_()
        if self.placeholder is not None:
            self.placeholder.copy_(target.embed(torch.tensor([self.config.mask_token_id]))[0])
        lm_head, norm = target.output_weight()
        embedding = target.embed(torch.arange(self.config.vocab_size))
        if self.draft_ids is not None:
            lm_head = lm_head[self.draft_ids]
            embedding = torch.cat([embedding[self.draft_ids], embedding.mean(0, keepdim=True)])
        svd_start(self.sequential_head, lm_head, norm, embedding)

    def forward(self, block: BlockInput) -> Tensor:
        """Teacher-forced draft logits over the draft vocabulary: [N,K,V'], in the model's dtype."""
        hidden = self.hidden(block.taps, block.anchor, block.before, block.previous.shape[1], block.history)
        state = self.sequential_head.initial_state(len(block.anchor))
        if self.config.anchor_group == 2:
            state = self.sequential_head.step(state, self.rows(block.before))
        return self.sequential_head(hidden, self.rows(block.previous), state)  # type: ignore[no-any-return]

    def hidden(self, taps: Tensor, anchor: Tensor, before: Tensor, K: int, history: History | None = None) -> Tensor:
        """Hidden states of K placeholder slots: [N,K,D]."""
        depth = self.layer_depth_embedding.weight[list(self.taps)]
        context = self.context(taps, depth, history)
        known = torch.stack([before, anchor], 1) if self.config.anchor_group == 2 else anchor[:, None]
        words = self._embedding[0].embed(known).to(depth.dtype)
        queries = torch.cat([words, self.placeholders(words).expand(len(anchor), K, -1)], 1)
        positions = self.layout.query_positions()[: queries.shape[1]].to(queries.device)
        return self.layout.drafts(self._backbone[0](queries, positions, context))

    def context(self, taps: Tensor, depth: Tensor, history: History | None) -> Context:
        """The pivot's taps side by side, each normalised with its depth; for the teacher, the history before them."""
        if self.config.last_tap == "normed":
            taps = torch.cat([taps[:, :-1], self._embedding[0].final_norm(taps[:, -1:])], 1)
        rows = self.context_norm(taps.to(depth.dtype) + depth)
        positions = rows.new_zeros(rows.shape[1], dtype=torch.long)
        if not self.config.history_window or history is None:
            return Context(rows, positions)
        fused = self.history_norm(self.history_fuse(history.taps.to(depth.dtype).flatten(1)))[history.rows]
        here = positions.expand(len(rows), -1)
        mask = torch.cat([history.real, torch.ones_like(here, dtype=torch.bool)], 1)
        return Context(torch.cat([fused, rows], 1), torch.cat([-history.distance, here], 1), mask)

    def placeholders(self, like: Tensor) -> Tensor:
        """The vector every placeholder starts from, [D]."""
        if self.placeholder is not None:
            return self.placeholder
        mask = torch.tensor([self.config.mask_token_id], device=like.device)
        return self._embedding[0].embed(mask)[0].to(like.dtype)

    def rows(self, tokens: Tensor) -> Tensor:
        """Rows of the previous-token table for token ids."""
        return tokens if self.draft_rows is None else self.draft_rows[tokens]

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block, then ``max(counts)`` steps of the head. The block is always whole, so that a
        request's drafts do not depend on how many its neighbours in the batch want."""
        head = self.sequential_head
        merged = head.hidden_part(self.hidden(view.taps, view.anchor, view.before, self.config.K))
        state = head.initial_state(len(view.anchor))
        if self.config.anchor_group == 2:
            state = head.step(state, self.rows(view.before))
        previous, drafts = view.anchor, []
        for slot in range(max(counts)):
            state = head.step(state, self.rows(previous))
            logits = head.output_proj(head.merge(state, merged[:, slot]))
            previous = chooser.choose(slot, logits, self.draft_ids)
            drafts.append(previous)
        tokens = torch.stack(drafts, 1) if drafts else view.anchor.new_zeros(len(view.anchor), 0)
        return Proposal(tokens, torch.tensor(counts, device=tokens.device))

    def state_bytes(self) -> int:
        """The pivot's taps, which the engine holds anyway: n * D fp32 numbers, whatever the history."""
        return 4 * len(self.taps) * self.config.backbone.hidden_size

    def copy(self) -> DLite:
        """The same network with its own weights, borrowing the same target."""
        twin = DLite(self.config)
        twin.load_state_dict(self.state_dict())
        twin._embedding = self._embedding
        return twin.to(self.context_norm.weight.device, self.context_norm.weight.dtype)

    def freeze(self) -> DLite:
        """Ready for decoding: no gradients, and on a CPU the fast frozen layout. Training must go on with a ``copy``."""
        self.eval().requires_grad_(False)
        for layer in self.layers:  # queries and context differ, so only these share an input
            freeze_for_cpu(layer, (("k_proj", "v_proj"), ("gate_proj", "up_proj")))
        head = self.sequential_head
        for name in ("output_proj", "state_proj"):
            linear = getattr(head, name)
            if can_pack(linear.weight):
                setattr(head, name, PackedLinear(linear.weight, linear.bias))
        return self
