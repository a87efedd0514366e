"""SODA inside other people's learners. Each file needs its library installed; nothing else imports them."""
