"""Options that several verbs share, each with its one sentence of help."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[str, typer.Option(help="Hub id, folder, .gguf file, or built-in name (smollm2-135m).")]
Drafter = Annotated[str, typer.Option(help="'shipped', a drafter folder, or a name from dlite drafters.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16. Exact losslessness needs float32.")]
DraftCounts = Annotated[list[int] | None, typer.Option("--k", "-K", help="Drafts a round; several make several arms.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
LongestAnswer = Annotated[int, typer.Option(help="Longest answer.")]
LongestPrompt = Annotated[int | None, typer.Option(help="Leave out prompts longer than this many tokens.")]
LongestHistory = Annotated[int | None, typer.Option(help="Leave out turns behind more tokens than this.")]
TurnsPerTrace = Annotated[int, typer.Option(help="Turns to take from one conversation, spread over it.")]
Plain = Annotated[
    bool, typer.Option("--plain", help="Write tool calls and results as text, around the chat template's own forms.")
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: section.key=value.")]
