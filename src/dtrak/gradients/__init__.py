"""Turn a noised copy of an image into k numbers: choose timesteps, compute gradients of objectives, project them."""
