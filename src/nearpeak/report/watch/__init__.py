"""The live view of a machine: computed here as lines of text without any toolkit; `app` shows them."""
