"""Fuzzing of the commands: hypothesis damages command lines and files, and every command has to end in order.

`commands.yml` lists the commands and how their files are damaged, `damage` damages files, `campaign` draws
the cases and runs them, `processes` starts and judges a command. scripts/fuzz.py is the program.
"""
