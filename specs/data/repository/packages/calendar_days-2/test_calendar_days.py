import unittest

from calendar_days import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(days_in(2023, 7), 31)
