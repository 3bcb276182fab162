"""The one exception for what a user can get wrong."""


class UserError(ValueError):
  """A mistake in a config, a file or an argument; never a fault of the code.

  The message is one line that names the value, what is needed and the fix.
  The command line prints it without a traceback and exits with 1.
  """
