"""What the benchmarks share: steps timed in pairs, their ratios, and the machine that a report comes from."""
