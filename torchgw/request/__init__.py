"""From what a user asks to what is solved: every refusal and every default."""
