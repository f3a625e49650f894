"""The optimization step: schedules, optimizers, gradients, loss scale."""
