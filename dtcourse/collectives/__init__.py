"""Collective communication, built on send and receive alone."""
