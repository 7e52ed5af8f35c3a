"""What the plug-in serves: the arguments a server must be started with, and the requests it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlite.checkpoint import dlite as layout
from dlite.checkpoint.files import CONFIG, read_config
from dlite.errors import CheckpointError, ConfigError

MAX_RUNNING = 48  # what SGLang itself takes for EAGLE and NGRAM where nothing is said

# argument -> what it must be, and why
EXPECTED: dict[str, tuple[Any, str]] = {
    "tp_size": (1, "the drafter has not been tested over several ranks. Use one GPU a server, or --dp-size"),
    "pp_size": (1, "the drafter needs the target's embedding beside its last layer. Use one GPU a server"),
    "attn_dp_size": (1, "idle ranks of attention data parallelism are not served. Use --dp-size alone"),
    "dcp_size": (1, "decode context parallelism has not been tested. Leave it out"),
    "attn_cp_size": (1, "context parallelism has not been tested. Leave it out"),
    "disaggregation_mode": ("null", "drafts are made where a prompt is read and are not sent on. Leave it out"),
    "enable_two_batch_overlap": (False, "halves of a batch have not been tested. Leave it out"),
    "enable_pdmux": (False, "it runs prompts past the drafter. Leave it out"),
    "enable_deterministic_inference": (False, "verification draws by the server's seed, not by a request's. Leave it out"),
    "speculative_adaptive": (False, "the number of drafts is fixed. Leave it out"),
    "speculative_use_rejection_sampling": (False, "sampled drafts are always verified by rejection. Leave it out"),
    "speculative_use_block_verification": (False, "it would be ignored. Leave it out"),
    "speculative_accept_threshold_single": (1.0, "it would change what the target says. Leave it out"),
    "speculative_accept_threshold_acc": (1.0, "it would change what the target says. Leave it out"),
    "speculative_token_map": (None, "a drafter's vocabulary is part of its folder. Leave it out"),
}  # fmt: skip


def prepare(arguments: Any) -> None:
    """Check a server's arguments and fill in those left out. Errors: ``DliteError``."""
    phases = [getattr(arguments.cuda_graph_config, phase) for phase in ("decode", "prefill")]
    if any(phase.backend != "disabled" for phase in phases):
        raise ConfigError(
            "CUDA graphs are on with the algorithm DLITE. SGLang 0.5.23 captures graphs of a verification for its own "
            "algorithms alone. Start with --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled."
        )
    for name, (expected, why) in EXPECTED.items():
        found = getattr(arguments, name)
        if found != expected:
            raise ConfigError(f"{flag(name)} is {found} with the algorithm DLITE. Expected {expected}: {why}.")
    K = trained_drafts(arguments.speculative_draft_model_path)
    rows = arguments.speculative_num_draft_tokens or K + 1  # SGLang counts the anchor in
    if not 2 <= rows <= K + 1:
        raise ConfigError(
            f"--speculative-num-draft-tokens is {rows}. {arguments.speculative_draft_model_path} was trained for 1 to {K} "
            f"drafts a round, and SGLang counts the newest token in. Expected 2 to {K + 1}."
        )
    for name, value in (("speculative_num_steps", rows - 1), ("speculative_eagle_topk", 1)):
        found = getattr(arguments, name)
        if found not in (None, value):
            raise ConfigError(
                f"{flag(name)} is {found}, with {rows - 1} drafts in a chain. Expected {value}, or leave it out."
            )
        setattr(arguments, name, value)
    arguments.speculative_num_draft_tokens = rows
    if arguments.max_running_requests is None:
        arguments.max_running_requests = MAX_RUNNING


def trained_drafts(folder: str | None) -> int:
    """How many drafts a round the drafter in a folder was trained for. Errors: ``DliteError``."""
    if folder is None:
        raise ConfigError(
            "the algorithm DLITE was given no drafter. Expected a drafter's folder. Name it with "
            "--speculative-draft-model-path."
        )
    config = read_config(Path(folder))
    if not layout.fits(config):
        raise CheckpointError(
            f"{Path(folder) / CONFIG} describes {config.get('architectures')}. Expected {layout.ARCHITECTURE}: SGLang runs no "
            "other drafter of ours."
        )
    size = config.get("block_size")
    if not isinstance(size, int) or size < 2:
        raise CheckpointError(
            f"{Path(folder) / CONFIG} lacks a block_size of 2 or more (found {size!r}). Fetch or train the drafter again."
        )
    return size - 1


def flag(name: str) -> str:
    """An argument as it is typed."""
    return "--" + name.replace("_", "-")


def refusal(request: Any) -> str | None:
    """Why a request cannot be served with the target's own law, None if it can.

    Temperature, top-k, top-p, min-p, logit bias, grammars and log probabilities are served.
    """
    sampling = request.sampling_params
    penalties = [
        ("frequency_penalty", sampling.frequency_penalty, 0),
        ("presence_penalty", sampling.presence_penalty, 0),
        ("repetition_penalty", sampling.repetition_penalty, 1),
        ("min_new_tokens", sampling.min_new_tokens, 0),
    ]
    for name, found, neutral in penalties:
        if found != neutral:
            return (
                f"{name} is {found}. SGLang counts tokens once a round and not once a token, so that drafts would change the "
                f"answer: DLITE serves {neutral} alone. Send {neutral}, or start the server without a drafter; where it comes "
                "from the model's generation_config.json, start it with --sampling-defaults openai."
            )
    others = [
        ("a custom logit processor", request.custom_logit_processor is not None),
        ("return_hidden_states", bool(request.return_hidden_states)),
        ("beam search", (sampling.beam_width or 1) > 1),
    ]
    for name, asked in others:
        if asked:
            return f"DLITE does not serve {name}. Leave it out, or start the server without a drafter."
    return None
