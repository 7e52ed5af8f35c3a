"""DLite: a drafter that keeps no history (arXiv 2610.23787).

Each round it reads n target layers at the pivot, the anchor token and K placeholders; drafts all K in one
bidirectional pass; restores the order inside the block with a low-rank recurrent head; and forgets.
The training ``forward`` and the decoding ``propose`` stand side by side over the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser, Picker
from dlite.drafters.network import (
    BlockInput,
    DraftOutput,
    DraftVocab,
    History,
    drafter_backbone,
    drafter_taps,
    options,
    start_linear,
)
from dlite.nn.backbone import Backbone, BackboneConfig, Context, Past
from dlite.nn.cpu import PackedLinear, can_pack, freeze_for_cpu
from dlite.nn.heads import LowRankRNN, svd_start
from dlite.nn.layout import BlockLayout
from dlite.nn.markov import Confidence
from dlite.nn.past import PastMemory, SharedPast, past_bytes
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


@dataclass(frozen=True)
class DLiteConfig:
    """Everything that fixes a DLite network.

    ``anchor_group`` 2 is the ``dlite_v2`` form: the token at the pivot joins the query and primes the state.
    ``placeholder`` "token" reads row ``mask_token_id`` of the target's embedding, "learned" trains a vector from it.
    ``draft_vocab`` lists the token ids the head can say; None is the whole vocabulary.
    ``last_tap`` says whether the last layer's tap is taken before or after the target's final norm.
    ``history_window`` > 0 also shows it that many fused positions before the pivot, kept as keys and values: the teacher
    of the two-stage recipe, and the windowed control. ``join`` "features" makes one context row of all taps instead of a
    row each; ``start`` "random" leaves out the start from the target's matrices. Both are controls. ``query`` "taps" adds
    the context rows, fused by a matrix that starts at zero, to every query row. ``confidence`` adds the head that says how
    likely each draft is kept (2607.05147): c_i = sigmoid(w [h_i ; E_R[p]] + b).
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
    join: Literal["sequence", "features"] = "sequence"
    start: Literal["svd", "random"] = "svd"
    # Runs begun before there were these go on: their plan is a repr.
    confidence: bool = field(default=False, repr=False)
    query: Literal["words", "taps"] = field(default="words", repr=False)


class DLiteOptions(BaseModel):
    """The confidence head, and choices that the study compares: see ``DLiteConfig``."""

    model_config = ConfigDict(extra="forbid")
    join: Literal["sequence", "features"] = "sequence"
    start: Literal["svd", "random"] = "svd"
    confidence: bool = False
    query: Literal["words", "taps"] = "words"


class DLite(nn.Module):
    """The drafter's network. The target's embedding is borrowed through ``attach`` and never saved or trained."""

    name = "dlite"
    about = About(context="pivot", head="low-rank recurrent", paper="arXiv 2610.23787")
    Config = DLiteConfig

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
        self.history = config.history_window
        self.vocab = DraftVocab(config.vocab_size, config.draft_vocab)
        self.sequential_head = LowRankRNN(D, config.rank, self.vocab.size, self.vocab.previous_size)
        self.placeholder = nn.Parameter(torch.zeros(D)) if config.placeholder == "learned" else None
        if config.history_window:
            self.history_fuse = nn.Linear(len(config.taps) * D, D, bias=False)
            self.history_norm = nn.RMSNorm(D, eps=eps)
        if config.join == "features":
            self.tap_fuse = nn.Linear(len(config.taps) * D, D, bias=False)
        if config.query == "taps":
            rows = 1 if config.join == "features" else len(config.taps)
            self.query_fuse = nn.Linear(rows * D, D, bias=False)
        self.confidence_head = Confidence(D, config.rank) if config.confidence else None
        self.temperatures: tuple[float, ...] | None = None  # of the confidence, by position: see engine/calibration.py
        self._backbone = [backbone]  # in a list: not a second owner of the layers
        self._embedding: list[Target] = []

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> DLiteConfig:
        """A DLite for this target."""
        own = options(recipe, DLiteOptions)
        return DLiteConfig(
            backbone=drafter_backbone(recipe, info),
            vocab_size=info.vocab_size,
            K=recipe.K,
            taps=drafter_taps(recipe, info),
            num_target_layers=info.num_layers,
            rank=recipe.rank,
            mask_token_id=recipe.mask_token_id,
            anchor_group=recipe.anchor_group,
            placeholder=recipe.placeholder,
            draft_vocab=vocab,
            last_tap=recipe.last_tap or "raw",
            history_window=recipe.window or 0,
            join=own.join,
            start=own.start,
            confidence=own.confidence,
            query=own.query,
        )

    def attach(self, target: Target) -> DLite:
        """Borrow the target's embedding (and, for ``last_tap: normed``, its final norm)."""
        self._embedding = [target]
        return self

    @torch.no_grad()
    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights: small normal matrices, zero depth table, head from the SVD of the target's matrices."""
        start_linear(self, generator)
        self.layer_depth_embedding.weight.zero_()
        if self.config.query == "taps":
            self.query_fuse.weight.zero_()
        if self.placeholder is not None:
            self.placeholder.copy_(target.embed(torch.tensor([self.config.mask_token_id]))[0])
        if self.config.start == "random":
            self.sequential_head.prev_token_embedding.weight.normal_(generator=generator)
            return
        lm_head, norm = target.output_weight()
        svd_start(self.sequential_head, self.vocab.select(lm_head), norm, self.vocab.previous_words(target))

    def forward(self, block: BlockInput) -> DraftOutput:
        """Teacher-forced draft logits over the draft vocabulary: [N,K,V'], in the model's dtype."""
        past = None if block.history is None else self.shared_past(block.history)
        hidden = self.hidden(block.taps, block.anchor, block.before, block.previous.shape[1], past)
        state = self.sequential_head.initial_state(len(block.anchor))
        if self.config.anchor_group == 2:
            state = self.sequential_head.step(state, self.vocab.to_rows(block.before))
        previous = self.vocab.to_rows(block.previous)
        confidence = None
        if self.confidence_head is not None:
            confidence = self.confidence_head(self.sequential_head.prev_token_embedding(previous), hidden)
        return DraftOutput(self.sequential_head(hidden, previous, state), confidence)

    def hidden(
        self,
        taps: Tensor,
        anchor: Tensor,
        before: Tensor,
        K: int,
        past: Past | None = None,
        anchor_positions: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of K placeholder slots: [N,K,D]. Positions are local unless the past has global ones."""
        depth = torch.stack([self.layer_depth_embedding.weight[tap] for tap in self.taps])
        context = self.context(taps, depth)
        known = torch.stack([before, anchor], 1) if self.config.anchor_group == 2 else anchor[:, None]
        words = self._embedding[0].embed(known).to(depth.dtype)
        queries = torch.cat([words, self.placeholders(words).expand(len(anchor), K, -1)], 1)
        if self.config.query == "taps":
            queries = queries + self.query_fuse(context.rows.flatten(1))[:, None]
        with queries.device:  # made there: a CUDA graph cannot hold a copy from the CPU
            positions = self.layout.query_positions()[: queries.shape[1]]
        if anchor_positions is not None:
            positions = anchor_positions[:, None] + positions
            context = Context(context.rows, anchor_positions[:, None] + context.positions)
        return self.layout.drafts(self._backbone[0](queries, positions, context, past))

    def context(self, taps: Tensor, depth: Tensor) -> Context:
        """The pivot's taps side by side, each normalised with its depth, all at the anchor's position."""
        last = self.config.num_target_layers - 1
        if self.config.last_tap == "normed" and last in self.taps:  # the last layer's only, wherever it stands
            place = self.taps.index(last)
            normed = self._embedding[0].final_norm(taps[:, place : place + 1])
            taps = torch.cat([taps[:, :place], normed.to(taps.dtype), taps[:, place + 1 :]], 1)
        rows = taps.to(depth.dtype) + depth
        if self.config.join == "features":
            rows = self.tap_fuse(rows.flatten(1))[:, None]
        rows = self.context_norm(rows)
        return Context(rows, rows.new_zeros(rows.shape[1], dtype=torch.long))

    def shared_past(self, history: History) -> SharedPast:
        """The history of training blocks."""
        rows = self.fuse(history.taps)
        return SharedPast(rows, history.rows, history.distance, history.real, self.config.backbone)

    def fuse(self, taps: Tensor) -> Tensor:
        """A position's context row from all its taps: [...,n,D] -> [...,D]."""
        return self.history_norm(self.history_fuse(taps.to(self.norm.weight.dtype).flatten(-2)))  # type: ignore[no-any-return]

    def placeholders(self, like: Tensor) -> Tensor:
        """The vector every placeholder starts from, [D]."""
        if self.placeholder is not None:
            return self.placeholder
        mask = torch.full((1,), self.config.mask_token_id, device=like.device)
        return self._embedding[0].embed(mask)[0].to(like.dtype)

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block, then ``max(counts)`` steps of the head."""
        tokens, confidence = self.draft(view, max(counts), chooser)
        return Proposal(tokens, torch.tensor(counts, device=tokens.device), confidence=confidence)

    def draft(self, view: View, steps: int, chooser: Picker) -> tuple[Tensor, Tensor | None]:
        """``steps`` drafts for every request [B,steps], and their confidence. The block is always whole, so that a
        request's drafts do not depend on how many its neighbours want. Nothing in it waits for the device or reads
        values of a tensor: it can be captured as a CUDA graph."""
        head, memory = self.sequential_head, view.memory
        past = positions = None
        if memory is not None:
            past, positions = memory.read(view.rows, pivot=False), memory.anchors(view.rows)
        hidden = self.hidden(view.taps, view.anchor, view.before, self.config.K, past, positions)
        merged = head.hidden_part(hidden)
        state = head.initial_state(len(view.anchor))
        if self.config.anchor_group == 2:
            state = head.step(state, self.vocab.to_rows(view.before))
        previous, drafts, read = view.anchor, [], []
        for slot in range(steps):
            read.append(self.vocab.to_rows(previous))
            state = head.step(state, read[-1])
            logits = head.output_proj(head.merge(state, merged[:, slot]))
            previous = chooser.choose(slot, logits, self.vocab.ids)
            drafts.append(previous)
        tokens = torch.stack(drafts, 1) if drafts else view.anchor.new_zeros(len(view.anchor), 0)
        confidence = None
        if self.confidence_head is not None and drafts:
            confidence = self.stated(torch.stack(read, 1), hidden[:, : len(read)])
        return tokens, confidence

    def stated(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """The calibrated chance that each draft is kept: rows of the tokens before it [N,K], hidden [N,K,D] -> [N,K]."""
        words = self.sequential_head.prev_token_embedding(previous)
        logits: Tensor = self.confidence_head(words, hidden).float()  # type: ignore[misc]
        if self.temperatures is not None:
            logits = logits / logits.new_tensor(self.temperatures[: logits.shape[1]])
        return logits.sigmoid()

    def new_memory(self, rows: int) -> PastMemory | None:
        """None, unless a window of history is to be kept."""
        if not self.config.history_window:
            return None
        return PastMemory(self._backbone[0], self.fuse, rows, self.config.history_window + 1)  # and the pivot itself

    def state_bytes(self, context: int) -> int:
        """The pivot's taps, which the engine holds anyway: n * D fp32 numbers, whatever the history."""
        kept = 0
        if self.config.history_window:
            kept = past_bytes(self.config.backbone, context, self.config.history_window + 1)
        return kept + 4 * len(self.taps) * self.config.backbone.hidden_size

    def freeze(self) -> DLite:
        """Ready for decoding: no gradients, and on a CPU the fast frozen layout. It can no longer be trained."""
        self.eval().requires_grad_(False)
        for layer in self.layers:  # queries and context differ, so only these share an input
            freeze_for_cpu(layer, (("k_proj", "v_proj"), ("gate_proj", "up_proj")))
        head = self.sequential_head
        for name in ("output_proj", "state_proj"):
            linear = getattr(head, name)
            if can_pack(linear.weight):
                setattr(head, name, PackedLinear(linear.weight, linear.bias))
        return self
