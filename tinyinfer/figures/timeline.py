"""One recorded request on a time axis, still or played; and what its prefill does to answers under way.

`request_parts` is what both the picture and the widget draw. `web/timeline.js` places and plays it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.figures.request import Gaps, draw_gaps
from tinyinfer.figures.style import DECODE, INK, OTHER, PREFILL, TRANSFER, Figure, new_figure
from tinyinfer.figures.tables import html_table
from tinyinfer.figures.widgets import Widget, svg_picture
from tinyinfer.serving.trace import Trace, count_rows

LANES = ("router", "prefill worker", "link", "decode worker")
_COLOURS = {"queue": OTHER, "prefill": PREFILL, "transfer": TRANSFER, "step": DECODE}


@dataclass(frozen=True)
class Part:
    """What happens in one lane from `start` to `end`, in seconds since the router accepted the request.

    `kind` is queue, prefill, transfer or step. The other fields tell the state at its end: the answer so far, the rows
    of K and of V that exist in each layer and head, how many of them the decode worker holds, and the bytes that have
    crossed.
    """

    kind: str
    name: str
    lane: str
    start: float
    end: float
    says: str
    answer: tuple[str, ...]
    rows: int
    rows_there: int
    crossed_bytes: int


def request_parts(trace: Trace) -> list[Part]:
    """The parts of a traced request in order, each beginning where the one before ends.

    Queue, prefill, decode queue, transfer and first step last as long as `RequestTiming` says; each later step from
    one token to the next. Without a transfer, prefill is the last. Raises `BadInput` for times that run backwards.
    """
    timing, prompt = trace.result.timing, len(trace.request.input_tokens)
    rows = count_rows(trace.prefill.kv_cache)
    first, text = trace.prefill.next_token.text, trace.request.prompt
    names = [("queue", "queue", "router"), ("prefill", "prefill", "prefill worker")]
    seconds = [timing.queue_seconds, timing.prefill_seconds]
    says = [
        f"{text} waits at the router for a prefill worker",
        f"the prefill worker reads {text}, {_count(prompt, 'token')} at once, and answers {first}",
    ]
    states = [((), 0, 0, 0), ((first,), rows, 0, 0)]
    if trace.transfer is not None:
        size = trace.transfer.bytes
        names += [("queue", "decode queue", "router"), ("transfer", "transfer", "link")]
        seconds += [timing.decode_queue_seconds, timing.transfer_seconds]
        says.append(f"{first} is known; the request waits for a decode worker")
        says.append(f"{_count(rows, 'row')} of K and V, {size:,} bytes, cross to the decode worker")
        states += [states[-1], ((first,), rows, rows, size)]
        moments = timing.token_seconds[1:]
        seconds += [timing.first_step_seconds, *(after - before for before, after in pairwise(moments))]
        for number, step in enumerate(trace.decode, start=1):
            names.append(("step", f"step {number}", "decode worker"))
            read, answered = step.generated_tokens[-1].text, step.next_token.text
            says.append(f"the decode worker reads {read}, adds row {rows + 1} and answers {answered}")
            rows += count_rows(step.appended)
            states.append(((*states[-1][0], answered), rows, rows, size))
    if min(seconds) < 0:
        raise BadInput(f"{names[seconds.index(min(seconds))][1]} takes {min(seconds)} s; no part ends before it begins")
    bounds = pairwise(accumulate(seconds, initial=0.0))
    parts = zip(names, bounds, says, states, strict=True)
    return [Part(*name, *bound, words, *state) for name, bound, words, state in parts]


def draw_timeline(trace: Trace) -> Figure:
    """The parts of a traced request as bars, a lane for each place, with the tokens that each pass answers."""
    figure, axes = new_figure(7.0, 3.4)
    parts = request_parts(trace)
    for part in parts:
        lane, middle = LANES.index(part.lane), (part.start + part.end) * 500
        colour = _COLOURS[part.kind]
        axes.barh(lane, (part.end - part.start) * 1e3, left=part.start * 1e3, height=0.6, color=colour, edgecolor=INK)
        if part.kind == "transfer":
            words = f"{part.crossed_bytes:,} bytes"
            axes.text(middle, lane - 0.42, words, color=TRANSFER, ha="center", va="bottom")
        elif part.kind == "prefill":
            axes.text(middle, lane + 0.44, part.answer[-1], color=colour, ha="center", va="top", fontsize=13)
        elif part is parts[-1]:  # a step is too short to name its own answer below it
            answers = [step.next_token.text for step in trace.decode]
            shown = answers if len(answers) <= 8 else [*answers[:5], "…", *answers[-2:]]
            end = part.end * 1e3
            axes.text(end, lane + 0.44, " ".join(shown), color=colour, ha="right", va="top", fontsize=13)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set(ylim=(len(LANES) - 0.2, -0.6), xlabel="milliseconds since the router accepted the request")
    return figure


def request_timeline(trace: Trace, runs: Sequence[Gaps] = ()) -> Widget:
    """Play a recorded request, part by part; with `runs`, also show the gaps of running answers, one above another.

    `runs` are the same load served in different ways, as colocated and split. Raises `BadInput` for a run without gaps.
    """
    for run in runs:
        if len(run.seconds) == 0:
            raise BadInput(f"run {run.name!r} has no gaps between tokens; each run needs at least one")
    parts = request_parts(trace)
    head = ("part", "where", "from (ms)", "to (ms)", "what happens")
    rows = [(part.name, part.lane, _milliseconds(part.start), _milliseconds(part.end), part.says) for part in parts]
    alt = "The parts of the request as bars in four lanes: router, prefill worker, link, decode worker."
    still = svg_picture(draw_timeline(trace), alt) + html_table(head, rows)
    if runs:
        still += svg_picture(draw_gaps(runs), "Gaps between tokens against time, a panel for each run.")
        still += "".join(f"<p>{escape(summarise_gaps(run))}</p>" for run in runs)
    tokens = [*trace.request.input_tokens, *trace.output_tokens]
    caption = (
        "Play the request, slowed down, or go through its parts with the buttons; the slider moves time. A filled cell "
        "is a token whose row of K and V exists; a token without one is chosen and not yet read."
    )
    if runs:
        caption += " Below, the gaps between tokens of answers under way while long prompts (▲) come."
    return Widget(
        "widget-timeline",
        "timeline",
        {
            "lanes": LANES,
            "parts": [asdict(part) for part in parts],
            "tokens": [token.text for token in tokens],
            "axes": _shared_axes(runs),
            "runs": [
                {
                    "says": summarise_gaps(run),
                    "gaps": [[round(end, 4), round(gap, 6)] for end, gap in zip(run.ends, run.seconds, strict=True)],
                    "prompts": [round(moment, 4) for moment in run.prompts_came],
                }
                for run in runs
            ],
        },
        still,
        caption,
    )


def summarise_gaps(run: Gaps) -> str:
    """How evenly tokens of running answers came, in one sentence; the 99th percentile is NumPy's, interpolated."""
    gaps = np.asarray(run.seconds)
    ninety_nine = np.percentile(gaps, 99)
    return (
        f"{run.name}: {_count(len(gaps), 'gap')} between tokens, {_count(len(run.prompts_came), 'prompt')} came "
        f"meanwhile; median {_milliseconds(np.median(gaps))} ms, 99 % within {_milliseconds(ninety_nine)} ms, "
        f"longest {_milliseconds(gaps.max())} ms."
    )


def _shared_axes(runs: Sequence[Gaps]) -> dict[str, Any]:
    """The longest gap and the last moment of all runs, so that the pictures can be compared."""
    if not runs:
        return {}
    longest = max(max(run.seconds) for run in runs)
    last = max(max(*run.ends, *run.prompts_came) for run in runs)
    words = f"A dot is a gap; up to {_milliseconds(longest)} ms high, from 0 to {last:.1f} s."
    return {"longest": longest, "last": last, "says": words}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
