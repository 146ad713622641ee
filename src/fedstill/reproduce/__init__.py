"""The papers' tables and figures as recipes, run cell by cell."""
