"""Plans of placement, made by a person or a forecast, and who carries them out."""
