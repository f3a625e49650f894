"""User data: tables with texts and labels, and sentences with tagged words, as token rows."""
