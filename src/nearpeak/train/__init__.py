"""Training: executes any plan of a job with the same samples, steps and gradients."""
