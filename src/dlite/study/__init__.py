"""``dlite study``: many drafters, same data, same budget, one report."""
