"""Mathematics that more than one method uses. Round logic stays in the methods."""
