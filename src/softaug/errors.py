"""The one exception for mistakes a user can mend."""


class UserError(Exception):
    """Bad input: one sentence that says what is wrong and what to do.

    The command line prints it after ``softaug: error:`` and exits with status 2, without a traceback.
    """
