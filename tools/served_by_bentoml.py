"""The same folder behind BentoML, to compare with; serving_goals gives it an environment.

PEER_FOLDER=… PEER_BUDGET=… bentoml serve served_by_bentoml:Peer
"""

import os

import bentoml

from apportion.serving.runtime.prediction import softmax
from apportion.serving.runtime.session import Runtime


@bentoml.service(workers=1, traffic={"timeout": 60})
class Peer:
    """Texts in, labels out, in batches that BentoML makes of requests."""

    def __init__(self) -> None:
        """Loads the folder, in the worker."""
        self.runtime = Runtime(os.environ["PEER_FOLDER"], threads=1)
        self.budget = float(os.environ["PEER_BUDGET"])

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000)
    def predict(self, texts: list[str]) -> list[str]:
        """The labels of texts."""
        encoded = self.runtime.tokenizer.encode(texts)
        inputs = self.runtime.tokenizer.pad_arrays(encoded)
        likely = softmax(self.runtime(**inputs, budget=self.budget)).argmax(axis=-1)
        return [self.runtime.classes[int(place)] for place in likely]
