"""The fleet as a whole: releases planned ahead, and the view an operator has."""
