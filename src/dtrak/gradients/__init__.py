"""From a noised copy of an image to k numbers: timesteps, objectives, gradients by hooks on layers, projections."""
