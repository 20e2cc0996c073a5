"""One trainer: a source of experience, a learner, and the run that takes turns between them."""
