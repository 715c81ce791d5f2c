"""Tables of step times on real cards, made from NVIDIA's measurements, and how far they are from these."""
