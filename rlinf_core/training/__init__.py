"""Training against vectorised environments: rollouts, loops and what they log."""
