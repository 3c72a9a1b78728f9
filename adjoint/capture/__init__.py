"""From a Python function or a Dynamo graph to a pure graph with described inputs and outputs."""
