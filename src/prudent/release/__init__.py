"""How one number leaves a table: propose a sensitivity, test it privately, release or refuse."""
