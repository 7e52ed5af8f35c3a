"""DFlow: DFlash whose placeholders read what the target computed at the drafts it rejected a round ago (2609.06498)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.fused import FusedBody, FusedConfig, fused_values
from dlite.drafters.network import BlockInput, DraftOutput, drafter_backbone, options
from dlite.nn.backbone import Past
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.past import SharedPast
from dlite.nn.relay import Left, Relay, RelayMemory, join, nothing_left
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


class DFlowOptions(BaseModel):
    """Of training: ``rounds`` that read what the one before left, and how many tokens of ``context`` the target reads
    before the drafts of such a round."""

    model_config = ConfigDict(extra="forbid")
    rounds: int = Field(default=2, ge=1)
    context: int = Field(default=64, ge=1)


@dataclass(frozen=True, kw_only=True)
class DFlowConfig(FusedConfig):
    """A fused body with placeholders that predict themselves, and how its relay is trained."""

    rounds: int
    context: int


class DFlow(nn.Module):
    """A parallel block; each placeholder that overlaps the last round's rejected drafts reads the target's state there.

    In training one block in ``rounds + 1`` is plain. For the others the round before is made up on the spot, from the
    block's own history: see ``left_by_rounds_before``, and docs/decisions/11-relay.md for what differs from the paper.
    """

    name = "dflow"
    about = About(context="all", head="the target's", paper="arXiv 2609.06498")
    Config = DFlowConfig

    def __init__(self, config: DFlowConfig) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts, self.history = config, config.taps, config.K, config.history
        self.body = FusedBody(config)
        self.vocab = self.body.vocab
        self.relay = Relay(config.backbone.hidden_size, config.backbone.rms_norm_eps)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> DFlowConfig:
        """A DFlow for this target."""
        own = options(recipe, DFlowOptions)
        values = fused_values(recipe, drafter_backbone(recipe, info), info, vocab)
        return DFlowConfig(**values, slots="placeholders", **own.model_dump())  # type: ignore[arg-type]

    def attach(self, target: Target) -> DFlow:
        """Borrow the target's matrices."""
        self.body.attach(target)
        return self

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights: DFlash's, and a silent relay."""
        self.body.start(target, generator)
        nn.init.normal_(self.relay.inner.weight, 0, 0.02, generator=generator)
        nn.init.zeros_(self.relay.inner.bias)
        self.relay.silence()

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] of every slot; while it trains, of most blocks with what a round before would have left."""
        here = Standing.of(block, self.body.shared_past(block.history))
        left = self.left_to_training(here) if self.training else self.nothing()
        return DraftOutput(self.logits(here.anchor, block.previous.shape[1], here.past, left))

    def logits(self, anchor: Tensor, K: int, past: Past, left: Left, positions: Tensor | None = None) -> Tensor:
        """anchor [N], its ``positions`` [N] where the past has global ones -> [N,K,V']."""
        rows, at = self.body.queries(anchor, K, positions)
        correction, rejected = (self.words(tokens) for tokens in (anchor[left.block], left.rejected))
        added = self.relay(correction, rejected, left.rows)
        seen = left.slot <= K
        rows = rows.index_put((left.block[seen], left.slot[seen]), added[seen].to(rows.dtype), accumulate=True)
        return self.body.logits(self.body.layout.drafts(self.body.backbone(rows, at, None, past)))

    def words(self, tokens: Tensor) -> Tensor:
        """The target's embeddings: [M] -> [M,D]."""
        return self.body.borrowed.target.embed(tokens).to(self.body.norm.weight.dtype)

    def nothing(self) -> Left:
        """A round that left nothing."""
        return nothing_left(self.body.norm.weight, self.config.backbone.hidden_size)

    @torch.no_grad()
    def left_to_training(self, here: Standing) -> Left:
        """What blocks n with n mod (rounds + 1) = d read: the end of d rounds, the first of them plain."""
        parts = [self.nothing()]
        for depth in range(1, self.config.rounds + 1):
            chosen = torch.arange(depth, len(here.anchor), self.config.rounds + 1, device=here.anchor.device)
            found = self.left_by_rounds_before(here.select(chosen), depth)
            parts.append(replace(found, block=chosen[found.block]))
        return join(parts)

    def left_by_rounds_before(self, here: Standing, depth: int) -> Left:
        """What ``depth`` rounds before these blocks left to them, where the last of them ended exactly here.

        The round before begins some positions earlier in the block's own history (half of the blocks try one, a quarter
        two and so on) and drafts greedily. Where its first wrong draft is the one at the anchor, the target reads the
        last tokens before the anchor and the drafts from there on.
        """
        lag = halving(len(here.anchor), self.config.K).to(here.anchor.device)
        known = here.before(lag)[1].nonzero()[:, 0]
        if not len(known):
            return self.nothing()
        here, lag = here.select(known), lag[known]
        there, _ = here.before(lag)
        earlier = self.left_by_rounds_before(there, depth - 1) if depth > 1 else self.nothing()
        drafts = self.logits(there.anchor, self.config.K, there.past, earlier).argmax(-1)
        drafts = drafts if self.vocab.ids is None else self.vocab.ids[drafts]
        step = torch.arange(1, self.config.K + 1, device=lag.device)
        truth, _ = here.tokens_behind((lag[:, None] - step + 1).clamp_min(1))
        first_wrong = (drafts == truth).long().cumprod(1).sum(1) + 1
        hit = (first_wrong == lag).nonzero()[:, 0]
        if not len(hit):
            return self.nothing()
        left = self.verified(here.select(hit), drafts[hit], lag[hit])
        return replace(left, block=known[hit][left.block])

    def verified(self, here: Standing, drafts: Tensor, lag: Tensor) -> Left:
        """The target's states at drafts lag..K [E,K], of which the first stands at the anchor, behind true tokens."""
        target, K = self.body.borrowed.target, self.config.K
        context = (here.past.mask.sum(1) - 1).clamp(0, self.config.context)
        at = torch.arange(int(context.max()) + K, device=lag.device) - context[:, None]  # 0 is the anchor's position
        true, _ = here.tokens_behind((1 - at).clamp_min(1))
        own = drafts.gather(1, (lag[:, None] - 1 + at).clamp(0, K - 1))
        tokens = torch.where(at < 0, true, own)  # rows behind the last draft are padding, which nothing before it sees
        taps = target.forward(tokens, target.new_cache(*tokens.shape), 0, self.taps, "taps").taps
        block, column = ((at >= 0) & (at <= K - lag[:, None])).nonzero(as_tuple=True)
        rows = self.body.fuse(taps[block, column])
        return Left(rows, block, at[block, column] + 1, drafts.gather(1, lag[:, None] - 1)[block, 0])

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block; each slot chooses for itself."""
        memory: RelayMemory = view.memory
        left, past = memory.left(view.rows), memory.read(view.rows)
        logits = self.logits(view.anchor, self.config.K, past, left, memory.anchors(view.rows))
        tokens = [chooser.choose(slot, logits[:, slot], self.vocab.ids) for slot in range(max(counts))]
        drafts = torch.stack(tokens, 1)
        memory.drafted(view.rows, drafts, counts)
        return Proposal(drafts, torch.tensor(counts, device=view.anchor.device))

    def new_memory(self, rows: int) -> RelayMemory:
        """Keys and values of the verified positions, and what the last round left."""
        return RelayMemory(self.body.backbone, self.body.fuse, rows, self.config.window)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the history, and K rows that a round may leave, fp32."""
        return self.body.state_bytes(context) + 4 * self.config.K * self.config.backbone.hidden_size

    def freeze(self) -> DFlow:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        self.body.freeze()
        freeze_for_cpu(self.relay, ())
        return self


@dataclass(frozen=True)
class Standing:
    """Where training blocks stand: their anchors [M], the positions before them, and the token behind each of these."""

    anchor: Tensor
    past: SharedPast
    following: Tensor

    @staticmethod
    def of(block: BlockInput, past: SharedPast) -> Standing:
        """Where the blocks of a batch stand."""
        if block.history is None:
            raise RuntimeError("this drafter reads history: its blocks must bring it")
        return Standing(block.anchor, past, block.history.following)

    def select(self, index: Tensor) -> Standing:
        """Some of the blocks."""
        part = {name: getattr(self.past, name)[index] for name in ("index", "distance", "mask")}
        return replace(self, anchor=self.anchor[index], past=replace(self.past, **part))

    def tokens_behind(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens behind positions [M,J] before the anchors, and whether they are known."""
        column = self.past.distance[:, :1] - distance  # distances fall by one from column to column
        inside = (column >= 0) & (column < self.past.index.shape[1])
        column = column.clamp(0, self.past.index.shape[1] - 1)
        return self.following[self.past.index.gather(1, column)], inside & self.past.mask.gather(1, column)

    def before(self, lag: Tensor) -> tuple[Standing, Tensor]:
        """Blocks that begin ``lag`` [M] positions earlier, and whether their pivots are known."""
        distance = self.past.distance - lag[:, None]
        past = replace(self.past, distance=distance, mask=self.past.mask & (distance > 0))
        there = replace(self, past=past)
        anchor, known = there.tokens_behind(torch.ones_like(lag)[:, None])
        return replace(there, anchor=anchor[:, 0]), known[:, 0]


def halving(count: int, most: int) -> Tensor:
    """1, 2, 1, 3, 1, 2, 1, 4, ...: every number up to ``most`` half as often as the one before it: [count]."""
    numbers = torch.arange(1, count + 1)
    return torch.stack([numbers % 2**i == 0 for i in range(most)]).sum(0)
