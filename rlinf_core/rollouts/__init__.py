"""How a policy is played and what comes of it: vectors of environments, rollouts, evaluation, trajectories."""
