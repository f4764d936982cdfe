"""Predictions before anything runs: what machines are, what links carry, what a step will take.

hardware.py    published figures of accelerators and links, each with its source
topology.py    networks as graphs: hops, bisection, oversubscription
"""
