"""The pipeline engine: a stage that owns its weights, a transport, a worker loop, a launcher."""

from reproduce.engine.launch import run_pipeline

__all__ = ["run_pipeline"]
