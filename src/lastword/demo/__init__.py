"""The command `lastword demo`: one history, cleaned by a model of Kafka's rule and by ours.

Stands on top of all other packages: the command line imports it by name when the command is called. Start
reading in `trial.py`; `kafka_model.py` is the model, which the tests compare with a real Kafka.
"""
