"""People's own data: tables in files -> texts and labels -> token rows; sentences with tagged words."""
