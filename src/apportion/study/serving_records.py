"""Records of a server: what it carries, what it costs, and what it survives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from apportion.study.peer_records import ComparedRecord
from apportion.study.records import ABSENT


@dataclass(frozen=True, kw_only=True)
class ServedRecord(ComparedRecord):
    """What every record of a server says of the folder that it served."""

    runtime: Annotated[str, "what ran the model, with its version"]
    precision: Annotated[str, "`float32` or `int8`"]


@dataclass(frozen=True, kw_only=True)
class LoadRecord(ServedRecord):
    """One turn of one arm: how many requests, in time or not, and what they were answered at."""

    kind: ClassVar[str] = "load"
    arm: Annotated[str, "policy of the server: `ladder`, `static-0.25`, `refuse-at-512` …"]
    trace: Annotated[str, "how arrivals are spread: `poisson`, `gamma:CV2` or a file"]
    turn: Annotated[int, "arms of a turn have the same arrivals, texts and tiers"]
    seed: Annotated[int, "of arrivals and texts"]
    load: Annotated[float, "multiple of what the budget under `of` carries"]
    of: Annotated[str, "`whole` or `small`: the budget that `load` is a multiple of"]
    rows: Annotated[int, "of a request"]
    rate: Annotated[float, "requests a second"]
    seconds: Annotated[float, "length of the turn"]
    capacity: Annotated[float, "rows a second at the whole budget, measured before the turn"]
    small_capacity: Annotated[float, "rows a second at the smallest budget, measured likewise"]
    deadline_ms: Annotated[float, "multiple of a request's median time at the whole budget, alone"]
    mixed: Annotated[bool, "tiers at random; or all at the dearest"]
    results: Annotated[dict[str, Any], "counts, attainment, accuracy, budgets and latencies"]
    server: Annotated[dict[str, float], "rows by outcome, as the server counted them"]


@dataclass(frozen=True, kw_only=True)
class OverheadRecord(ServedRecord):
    """One server around the same model: a lone request, and all that it can take."""

    kind: ClassVar[str] = "overhead"
    arm: Annotated[str, "the server: `apportion`, `litserve`, `bentoml`; or `bare`, without one"]
    version: Annotated[str, "of the server"]
    budget: Annotated[float, "budget of every request"]
    turns: Annotated[int, "turns that the arms took"]
    alone_ms: Annotated[float, "a lone request's time, median"]
    over_ms: Annotated[float, "that less the bare call's: median of the turns' differences"]
    low_ms: Annotated[float, "lower end of that difference's 95 % interval"]
    high_ms: Annotated[float, "upper end of it"]
    clients: Annotated[int, "that ask at once when it is saturated"]
    rows: Annotated[int, "of a request when it is saturated"]
    rows_per_second: Annotated[float, "when it is saturated, median"]
    share: Annotated[float, "of the bare loop's rows a second: median of the turns' ratios"]
    low: Annotated[float, "lower end of the share's 95 % interval"]
    high: Annotated[float, "upper end of it"]


@dataclass(frozen=True, kw_only=True)
class TargetRecord(ServedRecord):
    """Requests with a target in milliseconds, alone or under load."""

    kind: ClassVar[str] = "target"
    load: Annotated[float, "0, or the share of what the whole budget carries"]
    target_ms: Annotated[float, "milliseconds that answers were to come within"]
    fastest_ms: Annotated[float, "a row's median time at the smallest budget, as a client sees it"]
    tokens: Annotated[int, "of the texts, at most"]
    requests: Annotated[int, "that were sent"]
    p50_ms: Annotated[float, "milliseconds that half of the answers took"]
    p95_ms: Annotated[float, "milliseconds that 95 % of them stayed below"]
    within: Annotated[float, "share of the requests that were answered within the target"]
    mean_budget: Annotated[float, "of the answers"]
    forecast_off: Annotated[
        float | None, "median distance of a call's time from the server's forecast, as a share"
    ] = None
    client_p99_ms: Annotated[float, "how late the client was, at its 99th percentile"]


@dataclass(frozen=True, kw_only=True)
class ChaosRecord(ServedRecord):
    """A server whose clients leave, whose worker dies, whose model is swapped, and that ends."""

    kind: ClassVar[str] = "chaos"
    rows: Annotated[int, "that were asked"]
    requests: Annotated[int, "that they came in"]
    left: Annotated[int, "requests whose client hung up before its answer"]
    deaths: Annotated[int, "of the worker, as the server counted them"]
    swaps: Annotated[int, "of the model"]
    answered: Annotated[int, "requests that were answered"]
    refused: Annotated[int, "requests that were refused, and asked again unless the server ended"]
    failed: Annotated[int, "requests that failed although their client waited"]
    lost: Annotated[int, "requests that got no answer although their client waited"]
    twice: Annotated[int, "answers to another request, and ids that the server's log has twice"]
    wrong: Annotated[int, "rows whose label is not the model's own at the budget that is named"]
    ending: Annotated[int, "requests that were under way at SIGTERM"]
    code: Annotated[int, "that the server ended with"]
    first_mb: Annotated[float, "resident size after half of the rows, in megabytes"]
    second_mb: Annotated[float, "resident size after all of them"]
    seconds: Annotated[float, "the whole of it took"]
    seed: Annotated[int, "of everything random in it"]


@dataclass(frozen=True, kw_only=True)
class AbandonedRecord(ServedRecord):
    """A server of which half of the clients do not wait for their answer, before and after."""

    kind: ClassVar[str] = "abandoned"
    turn: Annotated[int, "number of the try"]
    rows: Annotated[int, "that were asked in each of the three steps"]
    requests: Annotated[int, "of the second step"]
    left: Annotated[int, "of them, those whose client hung up before its answer"]
    answered: Annotated[list[float], "by step: share of the requests that somebody waited for"]
    spent_s: Annotated[float, "seconds of the batches of the second step"]
    wasted_s: Annotated[float, "of them, on rows that nobody waited for any more"]
    seed: Annotated[int, "of everything random in it"]


@dataclass(frozen=True, kw_only=True)
class DrainRecord(ServedRecord):
    """A server that is told to end while more waits than the grace period holds."""

    kind: ClassVar[str] = "drain"
    turn: Annotated[int, "number of the try"]
    grace_s: Annotated[float, "the grace period"]
    queued_s: Annotated[
        float, "what waited, in seconds at the whole budget as it was measured just before"
    ]
    multiple: Annotated[float, "that over the grace period"]
    rows: Annotated[int, "that waited or ran at SIGTERM"]
    answered: Annotated[int, "of them"]
    last_s: Annotated[float, "from SIGTERM to the last answer"]
    ended_s: Annotated[float, "from SIGTERM to the end of the process"]
    ready_ms: Annotated[float, "from SIGTERM until it said that it is not ready, as polled"]
    mean_budget: Annotated[float, "of the answers"]
    code: Annotated[int, "that the server ended with"]
    busy: Annotated[float, "other processes' load on the machine before it: runnable per core"]


@dataclass(frozen=True, kw_only=True)
class FuzzRecord(ComparedRecord):
    """Spoilt requests to all dialects, in the process of the application."""

    kind: ClassVar[str] = "fuzz"
    requests: Annotated[int, "that were sent"]
    seed: Annotated[int, "of what was spoilt"]
    statuses: Annotated[dict[str, int], "answers by their status"]
    wrong: Annotated[int, "500s, tracebacks, errors of no shape, and no answer within a minute"]
    deaths: Annotated[int, "of the worker"] = ABSENT


@dataclass(frozen=True, kw_only=True)
class PoliciesRecord(ComparedRecord):
    """Policies on the same traces in virtual time: no server runs, so there is no noise.

    `subject` says how long batches take: by a line, or by the forecast of a folder.
    """

    kind: ClassVar[str] = "policies"
    part: Annotated[str, "`short`, beside what one who knows the future could do; or `long`"]
    traces: Annotated[int, "that were replayed; tiers, lengths, loads and bursts differ"]
    rows: Annotated[int, "of a trace"]
    worth: Annotated[dict[str, float], "by policy: of the best possible, or of all rows whole"]
    in_time: Annotated[dict[str, float], "by policy: share of the rows"]
    worth_as_slackfit: Annotated[float, "share of the traces where the ladder's is at least that"]
    in_time_as_slackfit: Annotated[float, "likewise, of rows in time"]
    dearest_as_slackfit: Annotated[float, "likewise, of the worth of the dearest tier's answers"]
