"""The same folder behind LitServe, to compare with; serving_goals gives it an environment.

python served_by_litserve.py FOLDER PORT BUDGET
"""

import sys
from typing import Any

import litserve

from apportion.serving.runtime.prediction import softmax
from apportion.serving.runtime.session import Runtime


class Peer(litserve.LitAPI):
    """Texts in, labels out, in batches of 32 rows at most, which wait 10 ms for each other."""

    def setup(self, device: Any) -> None:
        """Loads the folder, in the worker."""
        self.runtime = Runtime(sys.argv[1], threads=1)
        self.budget = float(sys.argv[3])

    def decode_request(self, request):  # a hint would be taken for the schema of a body
        """The texts of a request."""
        return list(request["texts"])

    def predict(self, batch: list[list[str]]) -> list[list[str]]:
        """The labels of each request."""
        texts = [text for one in batch for text in one]
        encoded = self.runtime.tokenizer.encode(texts)
        inputs = self.runtime.tokenizer.pad_arrays(encoded)
        likely = softmax(self.runtime(**inputs, budget=self.budget)).argmax(axis=-1)
        labels = iter(self.runtime.classes[int(place)] for place in likely)
        return [[next(labels) for _ in one] for one in batch]

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        """Requests stay as they are."""
        return inputs

    def unbatch(self, output: list[list[str]]) -> list[list[str]]:
        """So do answers."""
        return output

    def encode_response(self, output: list[str]) -> dict[str, list[str]]:
        """An answer."""
        return {"labels": output}


if __name__ == "__main__":
    api = Peer(max_batch_size=32, batch_timeout=0.01)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
