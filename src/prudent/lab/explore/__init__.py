"""A page to explore prices with sliders: what they cost, what they buy, what they withstand."""
