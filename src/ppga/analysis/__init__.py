"""Analysis: what runs and archives are worth."""
