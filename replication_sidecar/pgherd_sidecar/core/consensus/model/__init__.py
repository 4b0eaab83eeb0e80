"""The values of the ordered log: views, blocks, messages, effects, and their binary forms.

In comes nothing but arguments. The room promises that a value does not change, and that what was
encoded is decoded to the same. It imports nothing of the machine that uses it.
"""
