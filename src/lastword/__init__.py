"""A keyed, compacted commit log whose bytes are Kafka's."""

__version__ = "0.1.0"
