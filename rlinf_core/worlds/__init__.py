"""Learned worlds: models of a task from recorded episodes, to train and compare policies in."""
