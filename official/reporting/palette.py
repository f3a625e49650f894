"""The colours of all plots: Okabe and Ito's, which colour-blind readers can tell apart, and greys."""

BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#00865F"  # green is darker than theirs, for text
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
INK, MUTED, GRID = "#24292f", "#6e7781", "#e6e8eb"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
ALARM = "#c0392b"
