"""Metrics, for Prometheus: base units, few labels, never a text."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from apportion import __version__
from apportion.serving.server.admitted import ANSWERED, CANCELLED, FAILED, TIMED_OUT, Batch
from apportion.serving.server.engine import ServingEngine, Ticket

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_WORDS = {ANSWERED: "ok", FAILED: "failed", CANCELLED: "cancelled", TIMED_OUT: "timed_out"}


class Metrics:
    """What a server counts. Its own registry: two servers in a process do not meet."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self.registry = CollectorRegistry()
        where: Any = {"registry": self.registry}
        self.http = Histogram(
            "http_server_request_duration_seconds",
            "Time from the first byte read to the answer.",
            ("route", "method", "status"),
            buckets=_SECONDS,
            **where,
        )
        self.rows = Counter(
            "apportion_rows", "Rows by how they ended.", ("tier", "outcome"), **where
        )
        self.degraded = Counter(
            "apportion_rows_degraded", "Rows that load lowered.", ("tier",), **where
        )
        self.met = Counter(
            "apportion_deadline_met", "Rows answered within their target.", ("tier",), **where
        )
        self.cost = Counter("apportion_cost_units", "Tokens times cost.", ("tier", "key"), **where)
        self.budget = Histogram(
            "apportion_budget",
            "Budgets that rows ran at.",
            ("tier",),
            buckets=engine.queue.model.levels,
            **where,
        )
        self.queued = Histogram(
            "apportion_queue_seconds", "Time in the queue.", buckets=_SECONDS, **where
        )
        self.encoded = Histogram(
            "apportion_encode_seconds", "Time of the encoder.", buckets=_SECONDS, **where
        )
        self.ran = Histogram(
            "apportion_model_seconds", "Time of a batch.", ("budget",), buckets=_SECONDS, **where
        )
        self.batch = Histogram(
            "apportion_batch_rows", "Rows of a batch.", ("budget",), buckets=_ROWS, **where
        )
        self.certified = Counter(
            "apportion_certified_rows",
            "Rows that asked for a certificate, by the budget that answered and what they got.",
            ("budget", "certified"),
            **where,
        )
        engine.queue.on_batch = self._note_batch
        self._watch_promise()
        for name, what, key in (
            ("apportion_queue_rows", "Rows that wait.", "rows"),
            ("apportion_queue_tokens", "Tokens that wait.", "tokens"),
            ("apportion_predicted_wait_seconds", "At the lowest budgets.", "wait"),
            ("apportion_rung", "Of the ladder; 0 is every tier at its highest.", "rung"),
            ("apportion_forecast_ratio", "Actual over forecast, of late.", "ratio"),
        ):
            gauge = Gauge(name, what, **where)
            gauge.set_function(lambda key=key: engine.queue.state()[key])  # type: ignore[misc]
        alive = Gauge("apportion_workers_alive", "Threads that take batches.", **where)
        alive.set_function(lambda: engine.workers_alive)
        spent = Gauge("apportion_batch_seconds", "Seconds of all batches.", **where)
        spent.set_function(lambda: engine.queue.spent)
        wasted = Gauge(
            "apportion_wasted_seconds", "Of them, on rows that nobody waited for.", **where
        )
        wasted.set_function(lambda: engine.queue.wasted)
        deaths = Gauge("apportion_worker_deaths", "Workers that were replaced.", **where)
        deaths.set_function(lambda: engine.deaths)
        self._build = Gauge("apportion_build_info", "What runs.", ("version", "digest"), **where)

    def _watch_promise(self) -> None:
        queue = self._engine.queue
        for name, what, key in (
            ("apportion_audits", "Answers that the whole model was asked about.", "audited"),
            ("apportion_audits_differed", "Audits in which it said another class.", "differed"),
            ("apportion_audits_waiting", "Answers that wait for their audit.", "waiting"),
            ("apportion_certificate_wealth", "Of the bet against the certificate.", "wealth"),
            ("apportion_certificate_alarm", "1 once audits say that texts have changed.", "alarm"),
        ):
            gauge = Gauge(name, what, registry=self.registry)
            gauge.set_function(lambda key=key: float(queue.promised().get(key, 0.0)))  # type: ignore[misc]

    def count(self, ticket: Ticket, key: str) -> None:
        """Counts the rows of a request that was admitted and has ended."""
        assert ticket.request is not None
        request, tier = ticket.request, ticket.terms.tier
        due = request.received + ticket.terms.target_ms / 1000.0
        self.encoded.observe(ticket.encode_seconds)
        # A request goes out with all of its rows or with none of them.
        self.rows.labels(tier, _WORDS[request.outcome]).inc(len(request.rows))
        if request.outcome != ANSWERED:
            return
        for row in request.rows:
            level = f"{row.level:g}"
            self.degraded.labels(tier).inc(row.level < row.asked)
            self.met.labels(tier).inc(row.ended <= due)
            self.cost.labels(tier, key).inc(row.cost)
            self.budget.labels(tier).observe(row.level)
            self.queued.observe(row.ended - row.computed - request.admitted)
            if row.certified is not None:
                told = "yes" if row.certified else "no"
                self.certified.labels(level, told).inc()

    def _note_batch(self, batch: Batch, seconds: float) -> None:
        level = f"{batch.level:g}"
        self.ran.labels(level).observe(seconds)
        self.batch.labels(level).observe(max(len(batch.rows), 1))  # an audit has one text

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        self._build.clear()  # a swap brings other weights
        digest = str(self._engine.queue.model.identity.get("weights", ""))[:12]
        self._build.labels(__version__, digest).set(1)
        return generate_latest(self.registry)
