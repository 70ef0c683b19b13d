"""How the public networks and landmarks that come with the package are made.

`prudent certify make-features` runs it; a certified classifier needs the files alone.
"""
