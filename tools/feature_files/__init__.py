"""How the public networks and landmarks that ship with the packages are made.

    python -m tools.feature_files glyphs-landmarks --out glyphs-landmarks.npz

A certified classifier needs the files alone.
"""
