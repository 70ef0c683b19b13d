"""Questions of several columns of one table, asked together."""
