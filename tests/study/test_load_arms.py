"""Arms of a load test: what is asked of each server before a turn."""

from __future__ import annotations

from apportion.study import load_arms


class Server:
    """Remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def ask(self, body):
        self.asked.append(body)
        return {"apportion": {"budget": 1.0}}


def test_the_deadline_is_of_requests_like_those_that_are_sent():
    server = Server()
    assert load_arms._alone(server, [("a", None), ("b", None)], 4, seconds=0.0) > 0.0
    assert {len(body["input"]) for body in server.asked} == {4}
    assert {body["tier"] for body in server.asked} == {"high-quality"}
