"""What several tests share: random laws and their exact enumeration, tiny targets, scripted and recording drafters."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise, product
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from dlite.drafters.base import Chooser, Drafter
from dlite.drafters.dlite import DLite, DLiteConfig
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.request import Event, Request
from dlite.nn.backbone import BackboneConfig
from dlite.nn.layout import default_taps
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.types import Generation, Proposal, Verdict, View

Run = Callable[..., tuple[int, str, str]]  # arguments of dlite -> status, stdout, stderr
Rule = Callable[[Tensor, Proposal, Tensor], Verdict]
Chain = list[Tensor]  # entry i: the law of token i given those before it, [V] * (i + 1)
Breaks = Callable[[list[list[float]], list[list[float]], Sequence[int]], list[list[float]]]

# --- verification: random cases for the naive twins ---


def laws(shape: Sequence[int], generator: torch.Generator, *, zeros: float = 0.0) -> Tensor:
    """Random fp64 distributions over the last axis; a share of the entries is zero, never all of a row."""
    weights = torch.rand(*shape, generator=generator, dtype=torch.float64) ** 2 + 0.01
    drop = torch.rand(*shape, generator=generator) < zeros
    drop.scatter_(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=generator), False)
    weights = weights.masked_fill(drop, 0)
    return weights / weights.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Case:
    """Inputs of a rule: p [B,K+1,V], a ragged proposal, coins u [B,K+1]."""

    p: Tensor
    draft: Proposal
    u: Tensor

    def rows(self) -> Iterator[tuple[list[list[float]], list[int], list[list[float]], list[float]]]:
        """(p, drafts, q, u) of each request without its padding, as the naive rules take them."""
        V = self.p.shape[-1]
        for b, count in enumerate(self.draft.num_tokens.tolist()):
            drafts = self.draft.tokens[b, :count].tolist()
            if self.draft.probs is None:
                q = [[float(v == token) for v in range(V)] for token in drafts]
            else:
                q = self.draft.probs[b, :count].tolist()
            yield self.p[b, : count + 1].tolist(), drafts, q, [*self.u[b, :count].tolist(), float(self.u[b, -1])]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Odd sizes, ragged rows, zero entries on either side, q equal to p, and drafts chosen for certain."""
    B, K, V = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(2, 7))
    kind = draw(st.sampled_from(["dense", "zeros", "same", "certain"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    zeros = 0.4 if kind == "zeros" else 0.0
    p = laws([B, K + 1, V], generator, zeros=zeros)
    q = p[:, :K].clone() if kind == "same" else laws([B, K, V], generator, zeros=zeros)
    tokens = torch.multinomial(q.reshape(-1, V), 1, generator=generator).view(B, K) if K else torch.zeros(B, 0).long()
    counts = torch.tensor(draw(st.lists(st.integers(0, K), min_size=B, max_size=B)))
    u = torch.rand(B, K + 1, generator=generator, dtype=torch.float64)
    u[torch.rand(B, K + 1, generator=generator) < 0.1] = 0
    return Case(p, Proposal(tokens, counts, None if kind == "certain" else q), u)


def pairs(verdict: Verdict) -> list[tuple[int, int]]:
    """[(accepted, next token)] of a batch."""
    return list(zip(verdict.num_accepted.tolist(), verdict.next_token.tolist(), strict=True))


# --- verification: the exact law of the output ---

CHAINS = ["dense", "q misses", "p misses", "both miss", "same", "certain"]


def chains(kind: str, V: int, K: int, seed: int = 0) -> tuple[Chain, Chain]:
    """A target chain and a draft chain, each a table over prefixes: p of K + 1 tokens, q of K."""
    generator = torch.Generator().manual_seed(seed)
    p_zeros, q_zeros = 0.5 * (kind in ("p misses", "both miss")), 0.5 * (kind in ("q misses", "both miss"))
    p = [laws([V] * (i + 1), generator, zeros=p_zeros) for i in range(K + 1)]
    if kind == "same":
        return p, p[:K]
    q = [laws([V] * (i + 1), generator, zeros=q_zeros) for i in range(K)]
    if kind == "certain":
        q = [torch.nn.functional.one_hot(table.argmax(-1), V).double() for table in q]
    return p, q


def chain_law(p: Chain, known: tuple[int, ...] = ()) -> Tensor:
    """The joint law of the tokens that follow ``known``, up to the end of the chain."""
    law = torch.ones((), dtype=torch.float64)
    for table in p[len(known) :]:
        law = law[..., None] * table[known]
    return law


def enumerate_law(rule: Rule, breaks: Breaks, p: Chain, q: Chain, *, certain: bool = False) -> tuple[Tensor, float]:
    """The exact law of the first K + 1 tokens under a rule, and how many drafts it accepts on average.

    Every draft is enumerated with its weight under q. The coins are integrated exactly: a rule is constant between
    the ``breaks`` of each coin (both ends of every cell are tried, so a wrong break shows). What the round leaves
    open of the K + 1 tokens follows p.
    """
    K, V = len(q), len(p[0])
    reached: dict[tuple[int, ...], float] = defaultdict(float)
    mean = 0.0
    for path in product(range(V), repeat=K):
        weight = math.prod(float(q[i][path[: i + 1]]) for i in range(K))
        if weight == 0:
            continue
        p_path = torch.stack([p[i][path[:i]] for i in range(K + 1)])
        q_path = torch.stack([q[i][path[:i]] for i in range(K)])
        grid = [list(pairwise(edges)) for edges in map(_edges, breaks(p_path.tolist(), q_path.tolist(), path))]
        cells = torch.tensor(list(product(*grid)), dtype=torch.float64)  # [cells, K+1, 2]
        low, high = cells.unbind(-1)

        def outcome(share: float, path=path, low=low, high=high, p_path=p_path, q_path=q_path) -> list[tuple[int, int]]:
            n = len(low)
            probs = None if certain else q_path.expand(n, -1, -1)
            draft = Proposal(torch.tensor([path] * n), torch.full((n,), K), probs)
            return pairs(rule(p_path.expand(n, -1, -1), draft, low + share * (high - low)))

        middle = outcome(0.5)
        assert outcome(1e-3) == middle == outcome(1 - 1e-3), "the rule changes inside a cell"
        for volume, (accepted, token) in zip((high - low).prod(1).tolist(), middle, strict=True):
            reached[(*path[:accepted], token)] += weight * volume
            mean += weight * volume * accepted
    law = torch.zeros([V] * (K + 1), dtype=torch.float64)
    for known, weight in reached.items():
        law[known] += weight * chain_law(p, known)
    return law, mean


def cdf(weights: Sequence[float]) -> list[float]:
    """Where a draw from these weights changes its token."""
    total, sums = sum(weights), [sum(weights[: i + 1]) for i in range(len(weights))]
    return [s / total for s in sums] if total else []


def residual(p: Sequence[float], q: Sequence[float]) -> list[float]:
    """max(p - q, 0)."""
    return [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]


def _edges(breaks: Sequence[float]) -> list[float]:
    """0, the breaks inside (0, 1) without rounding twins, 1."""
    edges = [0.0]
    for at in sorted(breaks):
        if at - edges[-1] > 1e-12 and at < 1 - 1e-12:
            edges.append(at)
    return [*edges, 1.0]


# --- tiny targets ---

FAMILIES = ["llama", "qwen2", "qwen3", "gemma3"]
GEMMA_WINDOW = 6
TINY_VOCAB = 37


def tiny_model(family: str, *, seed: int = 0, context: int = 40, **overrides: Any) -> Any:
    """A random model of a family, its output matrix scaled up so that the best token stands apart."""
    import transformers as tf

    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}
    text = "Text" if family == "gemma3" else ""
    sizes: dict[str, Any] = {
        "vocab_size": TINY_VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": context,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention"] * 2
        sizes |= {"sliding_window": GEMMA_WINDOW, "layer_types": kinds, "query_pre_attn_scalar": 12}
    config = getattr(tf, f"{names[family]}{text}Config")(**{**sizes, **overrides})
    torch.manual_seed(seed)
    model = getattr(tf, f"{names[family]}ForCausalLM")(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:  # away from their neutral start, so that a forgotten one shows
            weight += 0.2 * torch.randn(weight.shape)
    if not config.tie_word_embeddings:
        model.get_output_embeddings().weight *= 4
    return model


def tiny_drafter(target: Target, *, K: int = 4, seed: int = 0, taps: int = 4, **options: Any) -> DLite:
    """A DLite drafter with random layers and the output start of ``DLite.start``."""
    info = target.info
    config = DLiteConfig(
        backbone=BackboneConfig(info.hidden_size, 2, 2, 1, info.hidden_size // 2, 2 * info.hidden_size),
        vocab_size=info.vocab_size, K=K, taps=default_taps(info.num_layers, taps), num_target_layers=info.num_layers,
        rank=8, mask_token_id=info.vocab_size - 1, **options,
    )  # fmt: skip
    drafter = DLite(config).attach(target)
    generator = torch.Generator().manual_seed(seed)
    drafter.start(target, generator)
    with torch.no_grad():
        drafter.layer_depth_embedding.weight.normal_(generator=generator)
        for layer in drafter.layers:
            for weight in layer.parameters():
                weight.mul_(4)
    return drafter.eval()


# --- drafters for tests ---


class Oracle:
    """Knows the right continuations and spoils a share of its guesses, so that acceptance varies.

    What it proposes depends on the position alone, not on batch or round.
    """

    name = "oracle"
    taps: tuple[int, ...] = ()

    def __init__(self, truths: Sequence[Sequence[int]], vocab_size: int, K: int, *, wrong: float, seed: int) -> None:
        self.truths = [tuple(t) for t in truths]
        self.max_drafts = K
        generator = torch.Generator().manual_seed(seed)
        self.noise = torch.randn(1024, vocab_size, generator=generator)
        self.spoiled = (torch.rand(1024, generator=generator) < wrong).tolist()

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Logits that favour the right token, or noise where spoiled or at a loss."""
        known = [tuple(tokens) for tokens in view.tokens]
        truths = [next((t for t in self.truths if t[: len(k)] == k), ()) for k in known]
        slots = []
        for slot in range(max(counts)):
            logits = torch.stack([self.noise[len(k) + slot] for k in known])
            for row, k, truth in zip(logits, known, truths, strict=True):
                at = len(k) + slot
                if at < len(truth) and not self.spoiled[at]:
                    row[truth[at]] += 6
            slots.append(chooser.choose(slot, logits))
        return Proposal(torch.stack(slots, 1), torch.tensor(counts))

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def state_bytes(self, context: int) -> int:
        """Nothing a real drafter would hold."""
        return 0


class Recorder:
    """Any drafter, with the drafts it gave for each committed sequence."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name, self.taps, self.max_drafts = inner.name, inner.taps, inner.max_drafts
        self.drafts: dict[tuple[int, ...], list[int]] = {}

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """What the inner drafter proposes, noted."""
        proposal = self.inner.propose(view, counts, chooser)
        rows = zip(view.tokens, proposal.tokens.tolist(), proposal.num_tokens.tolist(), strict=True)
        self.drafts |= {tuple(tokens): drafts[:count] for tokens, drafts, count in rows if count}
        return proposal

    def new_memory(self, rows: int) -> Any:
        """As the inner drafter."""
        return self.inner.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        """As the inner drafter."""
        return self.inner.state_bytes(context)


# --- running the engine ---


def decode(target: Target, drafter: Drafter, requests: Sequence[Request], **options: Any) -> list[Generation]:
    """Every request in one engine, its results in order; what was streamed must add up to them."""
    engine = Engine(target, drafter, **options)
    streams: list[list[Event]] = [[] for _ in requests]
    numbers = [engine.submit(request, stream.append) for request, stream in zip(requests, streams, strict=True)]
    engine.run()
    results = [engine.result(number) for number in numbers]
    for result, events in zip(results, streams, strict=True):
        check_stream(events, result)
    return results


def check_stream(events: Sequence[Event], result: Generation) -> None:
    """Events put together are the result, and only the last one says how it ended."""
    assert "".join(text for e in events for text, _ in e.pieces) == result.text
    assert tuple(t for e in events for t in e.token_ids) == result.token_ids
    for event in events:
        assert [accepted for _, accepted in event.pieces if accepted] == [True] * event.accepted
    assert [e.finish for e in events] == [None] * (len(events) - 1) + [result.finish]


def plain(target: Target, requests: Sequence[Request]) -> list[Generation]:
    """One after the other, no drafts."""
    return [decode(target, NoDrafter(), [replace(request, K=None)])[0] for request in requests]


def outcome(results: Sequence[Generation]) -> list[tuple[tuple[int, ...], str, str]]:
    """What a person sees of each result."""
    return [(r.token_ids, r.finish, r.text) for r in results]


def shapes(result: Generation) -> list[tuple[int, int, int, int]]:
    """The rounds of a result without their times."""
    return [(r.proposed, r.accepted, r.committed, r.context) for r in result.rounds]


def truths_of(requests: Sequence[Request], results: Sequence[Generation]) -> list[tuple[int, ...]]:
    """Prompt and continuation of each request."""
    return [(*request.ids, *result.token_ids) for request, result in zip(requests, results, strict=True)]


@st.composite
def greedy_params(draw: st.DrawFn, vocab: int) -> SamplingParams:
    """Greedy, some with a repetition penalty or a bias."""
    penalty = draw(st.sampled_from([1.0, 1.0, 1.3, 0.7]))
    bias = draw(st.sampled_from([{}, {}, {1: 3.0, vocab - 1: -5.0}]))
    return SamplingParams(repetition_penalty=penalty, logit_bias=bias)


@st.composite
def request_lists(draw: st.DrawFn, vocab: int, context: int, K: int, sampling: Any, *, text: bool) -> list[Request]:
    """1 to 5 requests of different lengths, limits and stops."""
    tokens = st.integers(0, vocab - 1)
    one = st.builds(
        Request,
        ids=st.lists(tokens, min_size=1, max_size=min(14, context - 1)).map(tuple),
        max_new_tokens=st.integers(1, 24),
        K=st.none() | st.integers(1, K),
        sampling=sampling,
        stop_strings=st.lists(st.text("abcdefghijk", min_size=1, max_size=3), max_size=2).map(tuple)
        if text
        else st.just(()),
        stop_ids=st.none() | st.just(frozenset()) | st.frozensets(tokens, min_size=1, max_size=3),
    )
    return draw(st.lists(one, min_size=1, max_size=5))


# --- pages ---


def whole(page: str) -> bool:
    """Every tag closes, in order, and nothing is run or fetched: no scripts, no files from elsewhere."""
    parser = _Balanced()
    parser.feed(page)
    return parser.balanced and not parser.open and not re.search(r"<script|<link|@import|<img|url\(http", page)


class _Balanced(HTMLParser):
    void = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.balanced = True

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.balanced &= bool(self.open) and self.open.pop() == tag
