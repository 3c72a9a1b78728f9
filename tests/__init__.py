"""A package, because others (mace-torch) install one of this name, and theirs would be imported."""
