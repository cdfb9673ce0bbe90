"""What the Triton kernels of several ops share: launches, tiles, feature maps, rotations, activations."""
