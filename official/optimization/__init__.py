"""From losses to updated weights: schedules, optimizers, gradients, loss scale."""
