"""Memory: mixed precision, activation checkpointing, memory-efficient attention, offload."""
