"""Processes on Ray: learner groups (DDP, FSDP2), rollout workers, replay shards and readers."""
