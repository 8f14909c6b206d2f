"""The suites of PyTorch's torchdynamo harness: a model in eager mode and compiled."""
