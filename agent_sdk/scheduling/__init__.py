"""Several networks on one device: who computes next, and where. The policies are pure: they drive simulations too."""
