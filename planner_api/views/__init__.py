"""The fleet as a whole: models planned ahead, and the view an admin has."""
