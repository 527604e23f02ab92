"""A nested model as one ONNX file with a budget input, and what runs it."""
