"""Playing a policy: vectorised environments, rollouts, evaluation and trajectories."""
