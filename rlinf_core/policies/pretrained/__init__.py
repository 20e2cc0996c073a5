"""Policies with published networks, and their shared parts.

Vision-language models extend ``base.VisionLanguagePolicy``: ``flow_matching`` has the policies with
an action expert, ``action_tokens`` those with actions as tokens. ``visuomotor`` is the base of the
policies without a language model. ``network_factory`` makes, reads and writes their networks.
"""
