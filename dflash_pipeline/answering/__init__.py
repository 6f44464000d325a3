"""Answers from a server with OpenAI's interface: what is asked, what a reply means, when to try again, how many run.

settings    where the server is, and how patient we are
requests    the body of one request
exchange    one HTTP exchange, bounded in time and size
replies     what an exchange means: an answer, a reason, or another try
asking      a prompt and its tries
in_flight   many prompts at once, so many and no more
"""
