"""Learned worlds: a model of the task from recorded episodes, in which policies train and are
compared.
"""
