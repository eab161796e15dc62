"""The engines of worker processes.

Pipeline: a stage that owns its weights, a transport, a worker loop, a launcher. Lock-free: workers
that share the weights of the whole network.
"""

from reproduce.engine.launch import run_pipeline
from reproduce.engine.lockfree import run_lockfree

__all__ = ["run_lockfree", "run_pipeline"]
